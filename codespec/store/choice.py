"""Choose the target and the drafter from the settings, and recommend a model for this machine.

The recommendation depends on the machine's memory, its measured speed and the catalogue. If the recommended model has
been pulled, it is the default; otherwise codespec suggests pulling it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from codespec.api.config import SHIPPED, EngineConfig, make_config
from codespec.api.settings import Settings
from codespec.errors import ConfigError
from codespec.store.catalogue import OWN_DRAFTERS, Entry, find_entry, is_gguf, read_advice, read_catalogue
from codespec.store.conversions import gguf_architecture
from codespec.store.disk import written
from codespec.store.machine import computes_bfloat16, has_gpu, has_native, machine_memory, read_step
from codespec.store.model_folder import NATIVE_GGUF
from codespec.store.pulled import find_pulled

STARTER_NAME = "starter"
NATIVE = "native"
LARGER, SMALLER = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
DEFAULTS = (LARGER, SMALLER)  # models that may be the default without a setting; neither needs torch
LARGEST = "qwen2.5-coder-7b-instruct"  # recommended for fast machines; the 3B model's licence is non-commercial
MAX_TOKEN_MS = 45.0  # milliseconds per token; a slower model suggests too late
FREE = 0.75  # share of the machine's memory for models, because an editor and other programs need the rest
ON_PROCESSOR = 2e9  # parameters; a larger target needs a GPU to suggest in time


@dataclass(frozen=True, slots=True)
class NamedPair:
    """The target and drafter that a model name in the settings stands for."""

    target: str
    drafter: str
    dtype: str  # recommended number format of the target; "": the default


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """An engine configuration, and a clause that tells the user why its models were chosen."""

    config: EngineConfig
    why: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended model, or "starter" for the starter pair, and a clause that gives the reason."""

    model: str
    why: str


def resolve_engine(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """Return the configuration that `choose` makes of flags, variables and a settings file (None: the default)."""
    return choose(flags, Settings(file, environment)).config


def choose(flags: Mapping[str, Any], settings: Settings) -> ModelChoice:
    """Choose the models. Flags that are not None override CODESPEC_* variables, which override the settings file.

    The default is the recommended model if it has been pulled, else a pulled model in DEFAULTS, else the starter pair.
    Raises ConfigError for the first invalid setting, or for a model that is unknown or has not been pulled.
    """
    values, place = _merge(flags, settings)
    if name := values.get("model", ""):
        return ModelChoice(_with_pair(values, name), f"named by {place}")
    if "target" in values:
        return ModelChoice(make_config(_with_format(values)), "target and drafter are named one by one")
    best = recommend()
    why = best.why if best.model == STARTER_NAME else f"{best.model} has not been pulled"
    name = next((name for name in (best.model, *DEFAULTS) if find_pulled(name)), STARTER_NAME)
    if name == STARTER_NAME:
        return ModelChoice(make_config(_with_starter(values)), why)
    why = f"the default, since {'it has been pulled' if name == best.model else why}"
    return ModelChoice(_with_pair(values, name), why)


def default_depends_on_speed() -> bool:
    """Return whether all models in DEFAULTS are pulled and fit in memory, so that speed decides the default model."""
    return all(find_pulled(name) for name in (LARGER, SMALLER)) and takes_larger()


def named_model(flags: Mapping[str, Any], settings: Settings) -> str:
    """Return the model or target named in the settings, even if it has not been pulled, or "" if none is named."""
    values, _ = _merge(flags, settings)
    return str(values.get("model") or values.get("target") or "")


def named_pair(name: str) -> NamedPair:
    """Return a model's target and drafter, by default the starter's drafter. Raises ConfigError if unknown."""
    if name == STARTER_NAME:
        return NamedPair(str(SHIPPED / "target"), str(SHIPPED / "drafter"), "")
    entry = find_entry(name)
    if entry:
        own = OWN_DRAFTERS.get(entry.drafter)
        return NamedPair(entry.name, str(SHIPPED / own) if own else entry.drafter, entry.dtype)
    if find_pulled(name):
        return NamedPair(name, EngineConfig().drafter, "")
    raise ConfigError(f"model = {name!r} is unknown", f"choose one of {', '.join((STARTER_NAME, *read_catalogue()))}")


def is_native(name: str) -> bool:
    """Return whether a model is a local GGUF file of an architecture for which native kernels are built."""
    path = find_pulled(name) or Path(name)
    try:
        return has_native() and is_gguf(str(path)) and path.is_file() and gguf_architecture(path) in NATIVE_GGUF
    except OSError:  # loading the file reports the error
        return False


def offer(config: EngineConfig) -> Entry | None:
    """Return the model to suggest if the starter pair is used because no better model has been pulled, else None."""
    return find_entry(recommend().model) if not config.model and config.target == EngineConfig().target else None


def offer_note(config: EngineConfig) -> str:
    """Return a clause that suggests pulling the model that `offer` returns, or "" if `offer` returns None."""
    entry = offer(config)
    return f"the small starter pair answers; {pull_command(entry.name)} brings a real one" if entry else ""


def pull_command(name: str) -> str:
    """Return the command that pulls a model, in backticks, followed by the download size of a catalogue model."""
    entry = find_entry(name)
    return f"`codespec models pull {name}`" + (f" ({written(entry.size)})" if entry else "")


def model_name(name: str) -> str:
    """Return the catalogue name for a model name or hub id; return other known names unchanged. Raises ConfigError."""
    return name if name in ("", STARTER_NAME) else named_pair(name).target


def recommend(*, gpu: bool = False) -> Recommendation:
    """Return the model recommended for this machine's CPU or, if `gpu` is true, for its GPU."""
    return decide(machine_memory(), read_step(), gpu=gpu)


def decide(memory: int | None, step: float | None, *, gpu: bool = False) -> Recommendation:
    """Return the recommendation for a machine with `memory` bytes and `step` milliseconds per token of the 1.5B model.

    None means unknown. On a GPU, recommend the largest model that fits in memory. On a CPU, recommend the 7B or 1.5B
    model if it fits and takes at most MAX_TOKEN_MS ms per token, else the 0.5B model if it fits, else the starter pair.
    """
    fitting = [advice.target for advice in read_advice() if advice.gigabytes * 1e9 <= FREE * (memory or 0)]
    if gpu and fitting and read_catalogue()[fitting[-1]].parameters > ON_PROCESSOR:
        return Recommendation(fitting[-1], "the largest that fits in memory, on a GPU")
    if memory is None:
        return Recommendation(SMALLER, "the size of this machine's memory is unknown")
    if SMALLER not in fitting:
        return Recommendation(STARTER_NAME, f"this machine has {written(memory)} of memory")
    if LARGER not in fitting:
        return Recommendation(SMALLER, f"the 1.5B model needs more than {written(memory)} of memory")
    if step is None:
        return Recommendation(SMALLER, "the speed of this machine has not been measured yet")
    if step == inf:
        return Recommendation(SMALLER, "the native kernels are not built here")
    largest = read_catalogue()[LARGEST]
    predicted = predict_step(largest, step)
    if predicted is not None and predicted <= MAX_TOKEN_MS and largest.memory <= FREE * memory:
        return Recommendation(LARGEST, f"a token of the 7B model will take {predicted:.0f} ms here")
    took = f"a token of the 1.5B model takes {step:.0f} ms here"
    return Recommendation(LARGER, took) if step <= MAX_TOKEN_MS else Recommendation(SMALLER, took)


def takes_larger() -> bool:
    """Return whether LARGER fits in memory, so that the choice among DEFAULTS depends on this machine's speed."""
    return decide(machine_memory(), MAX_TOKEN_MS).model == LARGER


def predict_step(entry: Entry, step: float | None) -> float | None:
    """Return a native model's predicted milliseconds per token, given `step` of the 1.5B model, or None if unknown."""
    if not entry.read or step is None or step == inf:
        return None
    return step * entry.read / read_catalogue()[LARGER].read


def _merge(flags: Mapping[str, Any], settings: Settings) -> tuple[dict[str, Any], str]:
    """Return the merged settings of all levels, and the name of the source that sets `model`.

    `model` overrides `target` and `drafter` of lower levels, and `target` overrides `model` of a lower level. If one
    level sets both `model` and `target`, the target is used with the drafter recommended for the model.
    """
    values: dict[str, Any] = {}
    place = ""
    for level in settings.levels(EngineConfig, flags):
        if "model" in level.values:
            place = level.place
            values.pop("target", None)
            values.pop("drafter", None)
        elif "target" in level.values:
            values.pop("model", None)
        values.update(level.values)
    return values, place


def _with_pair(values: Mapping[str, Any], name: str) -> EngineConfig:
    """Return the configuration with the target and drafter of a model, except those that `values` sets explicitly."""
    pair = named_pair(name)
    settings = {**values, "model": model_name(name)}
    if name == STARTER_NAME and "target" not in values:
        settings = _with_starter(settings)
    elif "target" in values or not pair.dtype:
        settings = _with_format(settings)
    if "target" not in values:
        settings["target"] = _on_this_machine(pair.target)
        if dtype := _fitting_format(pair.dtype, settings):
            settings.setdefault("dtype", dtype)
    if "drafter" not in values:
        settings["drafter"] = _on_this_machine(pair.drafter)
    return make_config(settings)


def _on_gpu(values: Mapping[str, Any]) -> bool:
    device = values.get("device", "cpu")
    return bool(device.startswith("cuda") or (device == "auto" and has_gpu()))


def _with_format(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings; without a number format, add bfloat16 on a GPU, or native for a supported GGUF file."""
    own = NATIVE if is_native(values.get("target", "")) else ""
    dtype = _fitting_format("bfloat16" if _on_gpu(values) else own, values)
    beside = {"drafter_dtype": "float32"} if values.get("drafter_device") == "cpu" else {}
    return {"dtype": dtype, **beside, **values} if dtype and "dtype" not in values else dict(values)


def _with_starter(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings; if they set no number format for the starter pair, add a suitable number format."""
    return {"dtype": NATIVE, **values} if not _on_gpu(values) and has_native() else dict(values)


def _on_this_machine(name: str) -> str:
    """Return the model name unchanged; raise ConfigError if it names a catalogue model that has not been pulled."""
    if find_entry(name) is not None and find_pulled(name) is None:
        raise ConfigError(f"{name} has not been pulled", f"run {pull_command(name)}")
    return name


def _fitting_format(dtype: str, values: Mapping[str, Any]) -> str:
    """Return `dtype`, or a number format that is faster on the target's device ("" for the default format)."""
    if dtype == NATIVE and (_on_gpu(values) or not has_native()):
        dtype = "bfloat16"
    sure = values.get("device", "cpu").startswith("cuda")  # `auto` may become the processor
    return dtype if dtype != "bfloat16" or sure or computes_bfloat16() else ""
