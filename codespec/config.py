"""Every setting of the engine in one frozen object, resolved once: defaults < TOML file < environment < flags.

Knows names, types and ranges; imports neither torch nor transformers. Unknown keys are errors, never ignored.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError

STARTER = Path(__file__).parent / "starter"
PREFIX = "CODESPEC_"
NO_SETTINGS = ("CODESPEC_PROMPTS",)  # variables of ours that others read
CHOICES = {
    "dtype": ("float32", "bfloat16", "float16"),
    "drafter_dtype": ("float32", "bfloat16", "float16"),
    "mode": ("exact", "fast"),
    "policy": ("fixed", "confidence"),
    "proposers": ("chain", "suffix", "draft_model"),
}
LEAST = {"context": 64, "max_batch": 1, "draft_tokens": 0, "warmup": 0, "prefill_chunk": 16, "threads": 1}
# A slot takes memory at once, and torch falls over when it cannot start its threads.
MOST = {"max_batch": 256, "threads": 256}
SPELLED_TRUE, SPELLED_FALSE = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    target          a folder in the Hugging Face layout or a hub id
    drafter         the same; "none": no drafter
    device          auto, cpu or cuda
    dtype           the target's number format: float32, bfloat16 or float16
    drafter_dtype   the drafter's; where only `dtype` is given, the same
    mode            exact: the same bits with and without speculation; fast: up to near-ties
    speculate       whether requests that do not say otherwise are drafted for
    proposers       chain (suffix, then draft_model), or one of them
    policy          how the draft length is set: fixed, or stopped by the drafter's confidence
    draft_tokens    the longest draft, in target tokens
    min_confidence  the probability below which the drafter stops (policy confidence)
    warmup          target tokens of context, prompt included, before the first draft
    context         target tokens of prompt and completion together (0: the model's maximum, at most 2048)
    max_batch       requests that run at once
    prefill_chunk   prompt tokens a step
    threads         CPU threads
    """

    target: str = str(STARTER / "target")
    drafter: str = str(STARTER / "drafter")
    device: str = "cpu"
    dtype: str = "float32"
    drafter_dtype: str = "float32"
    mode: str = "exact"
    speculate: bool = True
    proposers: str = "chain"
    policy: str = "confidence"
    draft_tokens: int = 8
    min_confidence: float = 0.4
    warmup: int = 100
    context: int = 0
    max_batch: int = 8
    prefill_chunk: int = 256
    threads: int = 1

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(allowed)}.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise ConfigError(f"device = {self.device!r} is not one of auto, cpu, cuda.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value < least and not (name == "context" and value == 0):
                raise ConfigError(f"{name} = {value} is too small: it must be at least {least}.")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"{name} = {getattr(self, name)} is too large: it must be at most {most}.")
        if not 0.0 <= self.min_confidence <= 1.0:
            raise ConfigError(f"min_confidence = {self.min_confidence} is not a probability: choose 0 to 1.")


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """The configuration from a TOML file, then CODESPEC_* variables, then flags that are not None.

    Raises ConfigError naming the first key or variable that can't be used.
    """
    values = {
        **(_from_file(file) if file else {}),
        **_from_environment(os.environ if environment is None else environment),
        **_from_flags(flags),
    }
    if "dtype" in values:
        values.setdefault("drafter_dtype", values["dtype"])
    for name in ("target", "drafter"):
        if name in values:
            values[name] = _at_home(values[name])
    return EngineConfig(**values)


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration file {file} can't be read ({error.strerror}): check its path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML ({error}): mend that line.") from error
    return {key: _typed(key, value, f"{key} in {file}") for key, value in values.items()}


def _from_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _typed(key, value, key) for key, value in flags.items() if value is not None}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {name: value for name, value in environment.items() if name.startswith(PREFIX) and name not in NO_SETTINGS}
    keys = {name: name[len(PREFIX) :].lower() for name in found}
    return {key: _typed(key, _read_text(key, found[name]), name) for name, key in keys.items()}


def _typed(key: str, value: Any, label: str) -> Any:
    """A value of the setting's own type: nothing is converted but whole numbers to numbers."""
    kind = _kind(key, label)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{label} = {value!r}: it must be {_article(kind)}.")
    return value


def _read_text(key: str, text: str) -> Any:
    """What a variable's text spells in the setting's own type; the text itself where it spells none."""
    kind = _kind(key, PREFIX + key.upper())
    if kind is bool:
        spelled = text.lower()
        return spelled in SPELLED_TRUE if spelled in (*SPELLED_TRUE, *SPELLED_FALSE) else text
    try:
        return kind(text)
    except ValueError:
        return text


def _kind(key: str, label: str) -> type:
    """The type of a setting, which is its default's; ConfigError if there is no such setting."""
    known = [item.name for item in fields(EngineConfig)]
    if key not in known:
        raise ConfigError(f"Unknown setting {label}: known are {', '.join(known)}.")
    return type(getattr(EngineConfig(), key))


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _at_home(name: str) -> str:
    """A leading ~ opened, which shells leave alone behind `=` and in files."""
    opened = os.path.expanduser(name)
    if opened.startswith("~"):
        raise ConfigError(f"{name} begins with a home folder that is not known: give the whole path.")
    return opened
