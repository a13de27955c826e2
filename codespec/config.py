"""Every setting of the engine in one frozen object, and where settings come from: defaults < TOML file < environment <
flags.

Knows names, types and ranges; imports neither torch nor transformers, and does not know which target and drafter a
model's name means. Unknown keys are errors, never ignored; those of earlier versions are noted and
left out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError
from codespec.text_file import NotUtf8, read_text

# The folder of the models that ship. Its package is found without an import; without it, a folder that is not there.
_FOUND = importlib.util.find_spec("codespec_weights")
SHIPPED = Path(_FOUND.origin).parent if _FOUND and _FOUND.origin else Path(__file__).parent / "weights"
PREFIX = "CODESPEC_"
NO_SETTINGS = ("CODESPEC_PROMPTS", "CODESPEC_SERVE_TOKEN", "CODESPEC_TEST_CALLS")  # variables of ours that others read
TABLES = ("serve",)  # of a file, for settings that are not the engine's; CODESPEC_SERVE_* are their variables
REMOVED = {"serve": ("memory_mb", "gather_places")}  # by table: settings of earlier versions, without effect now
CHOICES = {
    "dtype": ("float32", "bfloat16", "float16", "int8"),
    "drafter_dtype": ("float32", "bfloat16", "float16", "int8"),
    "mode": ("exact", "fast"),
    "proposers": ("chain", "prediction", "suffix", "head", "draft_model"),
    "target_shape": ("own", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"),
}
POLICIES = ("cost+syntax", "cost", "fixed", "confidence", "plus2minus1", "ds4-80")
AUTOMATIC = ("threads", "max_batch", "prefill_chunk")  # 0, or "auto": by what is measured at start
LEAST = {
    "context": 64,
    "first_answer_ms": 0,
    "max_batch": 0,
    "cache_mb": 0,
    "draft_tokens": 0,
    "warmup": 0,
    "prefill_chunk": 16,
    "graph_rows": 0,
    "threads": 0,
    "tensor_parallel": 1,
}
# A slot takes memory at once, and torch falls over when it cannot start its threads.
MOST = {
    "max_batch": 256,
    "graph_rows": 512,
    "threads": 256,
    "tensor_parallel": 64,
    "cache_mb": 1 << 20,
    "first_answer_ms": 600_000,
}
SPELLED_TRUE, SPELLED_FALSE = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    model           a name of the catalogue, or starter: target and drafter together, and the target's number format;
                    "": the recommended one (model_folders.recommend) if it has been pulled, else the starter pair
    target          a folder in the Hugging Face layout, a .gguf file, the name of a pulled model or a hub id
    drafter         the same; "none": no drafter
    head            the folder of an EAGLE-3 or DFlash head that was trained for the target; "none": no head
    device          auto, cpu or cuda: where the target runs
    drafter_device  the same for the drafter; or same: where the target runs
    dtype           the target's number format: float32, bfloat16, float16 or int8 (on a CPU; exact by integer sums)
    drafter_dtype   the drafter's; with a drafter of your own, where only `dtype` is given, the same
    mode            exact: the same bits with and without speculation; fast: up to near-ties, as the drafter always is
    speculate       whether requests that do not say otherwise are drafted for
    proposers       chain (prediction, suffix, head, then draft_model), or one of them
    policy          how the draft length is set: cost+syntax, cost (without syntax), or, to compare: fixed[:tokens],
                    confidence[:threshold], plus2minus1, ds4-80
    caps            target tokens that no draft exceeds, by context class or language.class: comment = 10,
                    python.docstring = 0
    learn           whether what is learned about the pair is kept in the user's state folder
    draft_tokens    the longest draft, in target tokens; beyond 16 only by a cost policy, where so many rows cost little
    min_confidence  the probability below which the drafter stops (policy confidence)
    warmup          target tokens of context, prompt included, before the first draft
    context         target tokens of prompt and completion together (0: the model's maximum, or what a
                    sixteenth of the memory holds for all that run at once; 2048 at least where the model takes them)
    first_answer_ms  milliseconds until the first completion in a document that is new: prompts in an editor are cut to
                    what is read in that time here, 256 tokens at least (0: to the context alone)
    max_batch       requests that run at once; 0 or auto: 8, or 16 where that makes tokens clearly cheaper
    cache_mb        MB for the keys and values of target and drafter; what max_batch requests do not take keeps idle
                    documents warm (0: room for four times max_batch, within 256 MB)
    prefill_chunk   prompt tokens a step; 0 or auto: 64 to 512, as many as take 0.2 seconds
    graph_rows      tokens of the largest step that a GPU replays as a captured graph; 0: none is captured
    threads         CPU threads; 0 or auto: from one to the physical cores (or OMP_NUM_THREADS), as many as make the
                    95th percentile of a small verify clearly better
    tensor_parallel  processes, and on CUDA graphics processors, that hold the target together
    target_shape    own; or qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen2.5-32b: the target padded to that size, for
                    benchmarks
    """

    model: str = ""
    target: str = str(SHIPPED / "target")
    drafter: str = str(SHIPPED / "drafter")
    head: str = "none"
    device: str = "cpu"
    drafter_device: str = "same"
    dtype: str = "float32"
    drafter_dtype: str = "float32"
    mode: str = "exact"
    speculate: bool = True
    proposers: str = "chain"
    policy: str = "cost+syntax"
    caps: dict[str, int] = field(default_factory=dict)
    learn: bool = True
    draft_tokens: int = 32
    min_confidence: float = 0.4
    warmup: int = 0
    context: int = 0
    first_answer_ms: int = 800
    max_batch: int = 0
    cache_mb: int = 0
    prefill_chunk: int = 0
    graph_rows: int = 128
    threads: int = 0
    tensor_parallel: int = 1
    target_shape: str = "own"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(allowed)}.")
        split_policy(self.policy)
        _check_caps(self.caps)
        for name, also in (("device", ()), ("drafter_device", ("same",))):
            value, words = getattr(self, name), (*also, "auto", "cpu", "cuda")
            if value not in words and not re.fullmatch(r"cuda:\d{1,3}", value):
                raise ConfigError(f"{name} = {value!r} is not one of {', '.join(words)}.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value < least and not (name in ("context", *AUTOMATIC) and value == 0):
                raise ConfigError(f"{name} = {value} is too small: it must be at least {least}.")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name} = {getattr(self, name)} is too large: it must be at most {most}.")
        if not 0.0 <= self.min_confidence <= 1.0:
            raise ConfigError(f"min_confidence = {self.min_confidence} is not a probability: choose 0 to 1.")

    @property
    def asks_drafter(self) -> bool:
        """Whether the drafter, if there is one, is among the proposers."""
        return self.proposers in ("chain", "draft_model")

    @property
    def asks_head(self) -> bool:
        """Whether a head is set and among the proposers."""
        return self.head != "none" and self.proposers in ("chain", "head")


@dataclass(frozen=True, slots=True)
class Level:
    """What one source sets. `place` names the source in sentences."""

    place: str
    values: dict[str, Any]


def make_config(values: Mapping[str, Any]) -> EngineConfig:
    """The configuration with these settings. Raises ConfigError for one that can't be used."""
    found = dict(values)
    for name in ("target", "drafter"):
        if name in found:
            found[name] = _at_home(found[name])
    # The drafters that codespec ships are so small that float32 is as fast as any; in int8 they load sooner.
    shipped = Path(found.get("drafter", SHIPPED)).is_relative_to(SHIPPED)
    if "dtype" in found and (found["dtype"] == "int8" or not shipped):
        found.setdefault("drafter_dtype", found["dtype"])
    return EngineConfig(**found)


def read_settings(
    schema: type,
    flags: Mapping[str, Any],
    file: Path | None,
    environment: Mapping[str, str] | None,
    table: str = "",
    notes: MutableSequence[str] | None = None,
) -> dict[str, Any]:
    """What is set of the fields of `schema`, all with defaults, at any level; `notes` say what has no effect."""
    merged: dict[str, Any] = {}
    for level in read_levels(schema, flags, file, environment, table, notes):
        merged.update(level.values)
    return merged


def read_levels(
    schema: type,
    flags: Mapping[str, Any],
    file: Path | None,
    environment: Mapping[str, str] | None,
    table: str = "",
    notes: MutableSequence[str] | None = None,
) -> tuple[Level, Level, Level]:
    """What is set of the fields of `schema`: in a file's [table] (its top for ""), by CODESPEC_* variables
    (CODESPEC_TABLE_*), by flags that are not None. Without a file, the user's own is read where there is one.
    """
    given = os.environ if environment is None else environment
    found, told = file or user_file(), [] if notes is None else notes
    set_by_flags = {key: _typed(schema, key, value, key) for key, value in flags.items() if value is not None}
    return (
        Level(str(found), _from_file(schema, found, table, told) if found else {}),
        Level("the environment", _from_environment(schema, given, table, told)),
        Level("the command line", set_by_flags),
    )


def user_file() -> Path | None:
    """The configuration file that is read where none is named; None where there is none. One that is there but can't be
    read is told of when it is read.
    """
    from codespec.user_folders import config_folder

    file = config_folder() / "config.toml"
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return file
    return file


def _from_file(schema: type, file: Path, table: str, notes: MutableSequence[str]) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_text(file))
    except OSError as error:
        raise ConfigError(f"The configuration file {file} can't be read ({error.strerror}): check its path.") from error
    except NotUtf8 as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text ({error}): save it as UTF-8.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML ({error}): mend that line.") from error
    own = values.get(table, {}) if table else {key: value for key, value in values.items() if key not in TABLES}
    if not isinstance(own, dict):
        raise ConfigError(f"{table} in {file} must be a table: write [{table}] and its settings below.")
    labels = _without_removed({key: f"{key} in {file}" for key in own}, table, notes)
    return {key: _typed(schema, key, own[key], label) for key, label in labels.items()}


def _from_environment(
    schema: type, environment: Mapping[str, str], table: str, notes: MutableSequence[str]
) -> dict[str, Any]:
    prefix, others = PREFIX + (f"{table.upper()}_" if table else ""), [PREFIX + name.upper() + "_" for name in TABLES]
    found = {
        name[len(prefix) :].lower(): name
        for name in environment
        if name.startswith(prefix) and name not in NO_SETTINGS and (table or not name.startswith(tuple(others)))
    }
    names = _without_removed(found, table, notes)
    read = {key: _read_text(schema, key, environment[name], name) for key, name in names.items()}
    return {key: _typed(schema, key, read[key], name) for key, name in names.items()}


def _without_removed(labels: Mapping[str, str], table: str, notes: MutableSequence[str]) -> dict[str, str]:
    """Labels by key, without the settings that only earlier versions had: `notes` name those."""
    removed = REMOVED.get(table, ())
    notes.extend(f"{label} has no effect any more: remove it" for key, label in labels.items() if key in removed)
    return {key: label for key, label in labels.items() if key not in removed}


def _typed(schema: type, key: str, value: Any, label: str) -> Any:
    """A value of the setting's own type: nothing is converted but whole numbers to numbers."""
    kind = _kind(schema, key, label)
    if value == "auto" and key in AUTOMATIC:
        return 0
    if kind is dict and isinstance(value, dict):
        return _flat(value)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{label} = {value!r}: it must be {_article(kind)}.")
    return value


def _read_text(schema: type, key: str, text: str, label: str) -> Any:
    """What a variable's text spells in the setting's own type; the text itself where it spells none."""
    kind = _kind(schema, key, label)
    if kind is bool:
        spelled = text.lower()
        return spelled in SPELLED_TRUE if spelled in (*SPELLED_TRUE, *SPELLED_FALSE) else text
    if kind is dict:
        return read_caps(text)
    try:
        return kind(text)
    except ValueError:
        return text


def _kind(schema: type, key: str, label: str) -> type:
    """The type of a setting, which is its default's; ConfigError if there is no such setting."""
    known = [item.name for item in fields(schema)]
    if key not in known:
        raise ConfigError(f"Unknown setting {label}: known are {', '.join(known)}.")
    return type(getattr(schema(), key))


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table"}[kind]


def split_policy(policy: str) -> tuple[str, float | None]:
    """A policy's name and its own number, if it has one: `fixed:3`. Raises ConfigError for what is neither."""
    name, colon, text = policy.partition(":")
    if name not in POLICIES:
        raise ConfigError(f"policy = {policy!r} is not one of {', '.join(POLICIES)}.")
    if not colon:
        return name, None
    if name == "fixed" and re.fullmatch(r"\d{1,3}", text):
        return name, float(text)
    if name == "confidence" and re.fullmatch(r"0?\.\d{1,6}|[01](\.0{1,6})?", text):
        return name, float(text)
    raise ConfigError(f"policy = {policy!r}: only fixed:TOKENS and confidence:THRESHOLD take a number.")


def read_caps(text: str) -> dict[str, int]:
    """Caps as text: comment=10,python.docstring=0. Raises ConfigError for what does not read so."""
    pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    if any(not re.fullmatch(r"\d{1,3}", number.strip()) for _, _, number in pairs):
        raise ConfigError(f"caps = {text!r}: write class=tokens, for example comment=10,python.docstring=0.")
    return {name.strip(): int(number) for name, _, number in pairs}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """TOML's nested tables as one, with dotted names."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found.update(_flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value})
    return found


def _check_caps(caps: Mapping[str, Any]) -> None:
    if not caps:
        return
    from codespec_grammars import Context, language_names

    for name, tokens in caps.items():
        language, _, context = name.rpartition(".")
        if context not in list(Context) or (language and language not in language_names()):
            raise ConfigError(
                f"caps: {name!r} is not a context or language.context: contexts are {', '.join(Context)}."
            )
        if type(tokens) is not int or not 0 <= tokens <= 999:
            raise ConfigError(f"caps: {name} = {tokens!r} must be a whole number of tokens, 0 to 999.")


def _at_home(name: str) -> str:
    """A leading ~ opened, which shells leave alone behind `=` and in files."""
    opened = os.path.expanduser(name)
    if opened.startswith("~"):
        raise ConfigError(f"{name} begins with a home folder that is not known: give the whole path.")
    return opened
