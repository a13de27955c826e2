"""Which target and drafter the settings mean: `model` chooses both, `target` and `drafter` one each, and nothing means
the best pair on this machine (see `recommend`).

Knows how the three settings overrule each other, what is pulled and what the processor computes. Fetches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from codespec.catalogue.disk import written
from codespec.catalogue.entries import OWN_DRAFTERS, Entry, find_entry, read_catalogue
from codespec.catalogue.store import find_pulled
from codespec.config import SHIPPED, EngineConfig, make_config
from codespec.errors import ConfigError
from codespec.levels import read_levels
from codespec.model_folders.machine import computes_bfloat16, has_gpu
from codespec.model_folders.recommend import DEFAULTS, LARGER, SMALLER, recommend, takes_larger
from codespec.model_folders.step_time import read_step

STARTER_NAME = "starter"


@dataclass(frozen=True, slots=True)
class NamedPair:
    """What a model's name means: target and drafter as EngineConfig takes them, and the target's recommended number
    format ("": the default).
    """

    target: str
    drafter: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and in a few words why it has its target and drafter."""

    config: EngineConfig
    why: str


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """The configuration from a TOML file (by default the user's own), then CODESPEC_* variables, then flags that are
    not None; the later wins.

    Raises ConfigError naming the first key or variable that can't be used, or a model that is unknown or not pulled.
    """
    return choose(flags, file, environment).config


def choose(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> Choice:
    """As `resolve`, with the reason."""
    values, place = _merge(flags, file, environment)
    name = values.get("model", "")
    if name:
        return Choice(_with_pair(values, name), f"named by {place}")
    if "target" in values:
        return Choice(make_config(_with_format(values)), "target and drafter are named one by one")
    name, recommended = default_model(), recommend().model
    if name == STARTER_NAME:
        return Choice(make_config(values), f"{recommended} has not been pulled")
    why = "it has been pulled" if name == recommended else f"{recommended} has not been pulled"
    return Choice(_with_pair(values, name), f"the default, since {why}")


def default_model() -> str:
    """The model where nothing is chosen: the recommended one if it has been pulled, else another default model that
    has been, else the starter pair.
    """
    return next((name for name in (recommend().model, *DEFAULTS) if find_pulled(name)), STARTER_NAME)


def default_depends_on_speed() -> bool:
    """Whether both larger default models are here and the memory takes either, so that the speed chooses."""
    return all(find_pulled(name) for name in (LARGER, SMALLER)) and takes_larger()


def named_model(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The model or the target that the settings name, pulled or not; "" if they name none."""
    values, _ = _merge(flags, file, environment)
    return str(values.get("model") or values.get("target") or "")


def named_pair(name: str) -> NamedPair:
    """The pair that a catalogue name, its hub id or "starter" means. Raises ConfigError for other names."""
    if name == STARTER_NAME:
        return NamedPair(str(SHIPPED / "target"), str(SHIPPED / "drafter"), "")
    entry = find_entry(name)
    if entry is None:
        raise ConfigError(f"model = {name!r} is not one of {', '.join(known_names())}.")
    own = OWN_DRAFTERS.get(entry.drafter)
    drafter = str(SHIPPED / own) if own else entry.drafter
    return NamedPair(entry.name, drafter, entry.dtype)


def usual_dtype(name: str) -> str:
    """The number format in which a catalogue model or a pulled one is loaded, if the settings name none."""
    return _pair(name).dtype or EngineConfig().dtype


def known_names() -> list[str]:
    """The names that `named_pair` knows."""
    return [STARTER_NAME, *read_catalogue()]


def offer(config: EngineConfig) -> Entry | None:
    """The model to suggest pulling, where the starter pair runs only because nothing better is here; else None."""
    return find_entry(recommend().model) if not config.model and config.target == EngineConfig().target else None


def offer_note(config: EngineConfig) -> str:
    """The same as a clause for the user; "" where there is nothing to offer."""
    entry = offer(config)
    return f"the small starter pair answers; {pull_command(entry.name)} brings a real one" if entry else ""


def pull_command(name: str) -> str:
    """The command that pulls a model of the catalogue, and the size of the download."""
    entry = find_entry(name)
    return f"`codespec models pull {name}`" + (f" ({written(entry.size)})" if entry else "")


def model_name(name: str) -> str:
    """The model's own name, given that or its hub id. Raises ConfigError for an unknown one."""
    return name if name in ("", STARTER_NAME) else _pair(name).target


def _merge(
    flags: Mapping[str, Any], file: Path | None, environment: Mapping[str, str] | None
) -> tuple[dict[str, Any], str]:
    """All levels merged, and the place that set `model`.

    A model replaces target and drafter of the levels below, and a target replaces a model of a level below. On the same
    level both hold: the target as given, the drafter of the model. A drafter replaces only a drafter.
    """
    values: dict[str, Any] = {}
    place = ""
    for level in read_levels(EngineConfig, flags, file, environment):
        if "model" in level.values:
            place = level.place
            values.pop("target", None)
            values.pop("drafter", None)
        elif "target" in level.values:
            values.pop("model", None)
        values.update(level.values)
    return values, place


def _with_pair(values: Mapping[str, Any], name: str) -> EngineConfig:
    """The configuration with what a model's name means, except where something else was set."""
    pair = _pair(name)
    found = {**values, "model": model_name(name)}
    if "target" in values or not (pair.dtype or name == STARTER_NAME):
        found = {**_with_format(found)}
    if "target" not in values:
        found["target"] = _on_this_machine(pair.target)
        dtype = _fitting_format(pair.dtype, found.get("device", "cpu"))
        if dtype:
            found.setdefault("dtype", dtype)
    if "drafter" not in values:
        found["drafter"] = _on_this_machine(pair.drafter)
    return make_config(found)


def _with_format(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with the number format that a target of one's own has on a GPU, unless one was set."""
    device = values.get("device", "cpu")
    on_gpu = device.startswith("cuda") or (device == "auto" and has_gpu())
    dtype = _fitting_format("bfloat16", device) if on_gpu else ""
    beside = {"drafter_dtype": "float32"} if values.get("drafter_device") == "cpu" else {}
    return {"dtype": dtype, **beside, **values} if dtype and "dtype" not in values else values


def _pair(name: str) -> NamedPair:
    """As `named_pair`, but a model pulled from elsewhere gets the starter pair's drafter, which fits any."""
    if name != STARTER_NAME and find_entry(name) is None and find_pulled(name):
        return NamedPair(name, EngineConfig().drafter, "")
    return named_pair(name)


def _on_this_machine(name: str) -> str:
    """The name itself. Raises ConfigError for a model of the catalogue that has not been pulled."""
    if find_entry(name) is not None and find_pulled(name) is None:
        raise ConfigError(f"{name} has not been pulled: run {pull_command(name)}.")
    return name


def _fitting_format(dtype: str, device: str) -> str:
    """The recommended number format, or another that is fast where the target runs; "": the default. `auto` may turn
    out to be the processor.
    """
    on_gpu = device.startswith("cuda")
    if dtype == "int8" and (on_gpu or (device == "auto" and has_gpu()) or read_step() == inf):
        dtype = "bfloat16"  # int8 is for processors, and not for every one
    return dtype if dtype != "bfloat16" or on_gpu or computes_bfloat16() else ""
