"""Declare a setting once, as a dataclass field that carries its range, flag help and documentation text.

These declarations drive the value checks, the flags of every command (`cli.flags`) and the tables of docs/settings.md
(`python -m tools.settings_page`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from codespec.errors import ConfigError

_KEY = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """Metadata of a setting, apart from its name, type and default.

    help       its line in `--help`
    page       its cell in docs/settings.md, in Markdown ("": use `help`)
    shown      its default in docs/settings.md, in Markdown ("": the value itself)
    metavar    placeholder for its value in `--help`
    choices    the allowed values; (): any
    least      the smallest allowed number, `most` the largest; None: no bound
    automatic  whether 0, also spelled `auto`, means that the value is measured
    common     whether `--help` shows the flag, not only `--help-all`
    """

    help: str
    page: str = ""
    shown: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    automatic: bool = False
    common: bool = False


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Return a dataclass field with this metadata. A callable default is used as the field's `default_factory`."""
    metadata = {_KEY: Setting(help, **facts)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(schema: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name, in field order."""
    return {item.name: item.metadata[_KEY] for item in fields(schema)}


def check_values(settings: Any) -> None:
    """Raise ConfigError for the first value outside its setting's choices or range."""
    for name, facts in declared(type(settings)).items():
        value = getattr(settings, name)
        if facts.choices and value not in facts.choices:
            raise ConfigError(f"{name} = {value!r} is not one of {', '.join(facts.choices)}.")
        if facts.automatic and value == 0:
            continue
        if facts.least is not None and not value >= facts.least:  # written so that NaN fails
            raise ConfigError(f"{name} = {value} is too small", f"it must be at least {facts.least}")
        if facts.most is not None and not value <= facts.most:
            raise ConfigError(f"{name} = {value} is too large", f"it must be at most {facts.most}")
