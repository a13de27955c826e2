"""Every setting of the engine in one frozen object, resolved once: defaults < TOML file < environment < flags.

Knows names, types and ranges; imports neither torch nor transformers. Unknown keys are errors, never ignored.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError

STARTER = Path(__file__).parent / "starter"
PREFIX = "CODESPEC_"
CHOICES = {
    "dtype": ("float32", "bfloat16", "float16"),
    "drafter_dtype": ("float32", "bfloat16", "float16"),
    "mode": ("exact", "fast"),
    "policy": ("fixed", "confidence"),
    "proposers": ("chain", "suffix", "draft_model"),
}
LEAST = {"context": 64, "max_batch": 1, "draft_tokens": 0, "warmup": 0, "prefill_chunk": 16, "threads": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    `target`/`drafter`: a folder in the Hugging Face layout or a hub id ("none": no drafter). `context` is target tokens
    a request may take, prompt and completion together (0: the model's maximum, at most 2048). `warmup`: target tokens
    of context before the first draft. `draft_tokens`: the longest draft. `prefill_chunk`: prompt tokens a step.
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
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value < least and not (name == "context" and value == 0):
                raise ConfigError(f"{name} = {value} is too small: it must be at least {least}.")
        if not 0.0 <= self.min_confidence <= 1.0:
            raise ConfigError(f"min_confidence = {self.min_confidence} is not a probability: choose 0 to 1.")


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """The configuration from a TOML file, then CODESPEC_* variables, then flags that are not None."""
    values: dict[str, Any] = {}
    values.update(_read(file) if file else {})
    values.update(_from_environment(os.environ if environment is None else environment))
    values.update({key: value for key, value in flags.items() if value is not None})
    known = {item.name: item for item in fields(EngineConfig)}
    for key in values:
        if key not in known:
            raise ConfigError(f"Unknown setting {key!r}: known are {', '.join(known)}.")
    return replace(EngineConfig(), **{key: _coerce(key, value) for key, value in values.items()})


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration file {file} can't be read ({error.strerror}): check its path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML ({error}): mend that line.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    names = {item.name for item in fields(EngineConfig)}
    found = {key[len(PREFIX) :].lower(): value for key, value in environment.items() if key.startswith(PREFIX)}
    return {key: value for key, value in found.items() if key in names}


def _coerce(key: str, value: Any) -> Any:
    """Gives a setting its type; text from the environment is read as the type's own spelling."""
    kind = type(getattr(EngineConfig(), key))
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, str):
        raise ConfigError(f"{key} = {value!r} has the wrong type: it must be {_article(kind)}.")
    if kind is bool:
        if value.lower() not in ("1", "0", "true", "false", "yes", "no"):
            raise ConfigError(f"{key} = {value!r} is not true or false.")
        return value.lower() in ("1", "true", "yes")
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(f"{key} = {value!r} is not {_article(kind)}.") from error


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
