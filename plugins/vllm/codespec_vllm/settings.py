"""Settings in environment variables CODESPEC_VLLM_*, because vLLM passes no settings to a proposer class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from codespec.errors import ConfigError

PREFIX = "CODESPEC_VLLM_"


@dataclass(frozen=True, slots=True)
class Settings:
    """The proposer's settings, which README.md explains."""

    drafter: str = "auto"
    dtype: str = "native"
    device: str = "cpu"
    context: int = 1024
    max_rows: int = 32
    policy: str = "cost"
    share: int = 0


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises ConfigError for an unknown variable, an invalid number or an unknown policy."""
    known, values = {PREFIX + field.name.upper(): field for field in fields(Settings)}, dict[str, Any]()
    for name in (name for name in environment if name.startswith(PREFIX)):
        if name not in known:
            raise ConfigError(f"{name} is not a setting: use one of {', '.join(known)}.")
        value, number = environment[name], isinstance(known[name].default, int)
        if number and not value.isdecimal():
            raise ConfigError(f"{name} = {value!r} is not a number: give digits only.")
        values[known[name].name] = int(value) if number else value
    settings = Settings(**values)
    for name in ("context", "max_rows"):
        if not getattr(settings, name):
            raise ConfigError(f"{PREFIX}{name.upper()} = 0 would never draft: give at least 1.")
    if settings.policy not in ("cost", "fixed"):
        raise ConfigError(f"{PREFIX}POLICY = {settings.policy!r} is unknown: use cost or fixed.")
    return settings
