"""Declare a setting or a field of a request once, with its range and its description.

A setting is a dataclass field. Its declaration determines the value checks, the flags of every command (`cli.options`)
and the tables of docs/settings.md and docs/editors.md (`python -m tools.settings_page`). A field of a request is
annotated in `api.body`.
"""

from __future__ import annotations

import math
import re
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, get_args

from codespec.errors import ConfigError

_KEY = "setting"

_ASIDE, _LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)"), re.compile(r"\[([^\]]*)\]\([^)]*\)")  # of Markdown


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """Description and range of a value.

    choices    the allowed values; (): any
    least      the smallest allowed number; None: no bound
    most       the largest allowed number, or the greatest length of a text or list; None: no bound
    """

    help: str
    _: KW_ONLY
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        return -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most

    def contains(self, value: float) -> bool:
        """Return whether a number is within the bounds; NaN is not."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def allows(self, value: str | float) -> bool:
        """Return whether a value is one of the choices, or within the bounds."""
        if self.choices:
            return value in self.choices
        return self.contains(len(value) if isinstance(value, str) else value)

    @property
    def range(self) -> str:
        """The values that it allows, for a sentence: "must be …"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return f"at most {self.most} characters long" if self.least is None else f"between {self.least} and {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(ValueSpec):
    """Metadata of a setting, apart from its name, type and default. `help` is Markdown, for pages and `--help`.

    shown      its default, in Markdown ("": the value itself)
    metavar    placeholder for its value in `--help`
    automatic  whether 0, also spelled `auto`, means that the value is measured
    common     whether `--help` shows the flag, not only `--help-all`
    """

    shown: str = ""
    metavar: str | None = None
    automatic: bool = False
    common: bool = False


def declared_range(hint: Any) -> ValueSpec | None:
    """Return the description in an annotation, also of an optional value; None if there is none."""
    nested = (declared_range(item) for item in (*getattr(hint, "__metadata__", ()), *get_args(hint)))
    return hint if isinstance(hint, ValueSpec) else next(filter(None, nested), None)


def plain(help: str) -> str:
    """Return a text in Markdown without its marks: links keep their text, those in brackets of their own go."""
    return _LINK.sub(r"\1", _ASIDE.sub("", help)).replace("`", "")


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Return a dataclass field with this metadata. A callable default is used as the field's `default_factory`."""
    metadata = {_KEY: Setting(help, **facts)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(schema: type) -> dict[str, Setting]:
    return {item.name: item.metadata[_KEY] for item in fields(schema)}


def check_values(settings: Any) -> None:
    """Raise ConfigError for the first value outside its setting's choices or range."""
    for name, facts in declared(type(settings)).items():
        value = getattr(settings, name)
        if facts.choices and value not in facts.choices:
            raise ConfigError(f"{name} = {value!r} is unknown", f"choose one of {', '.join(facts.choices)}")
        if facts.automatic and value == 0:
            continue
        if facts.least is not None and not value >= facts.least:  # written so that NaN fails
            raise ConfigError(f"{name} = {value} is too small", f"it must be at least {facts.least}")
        if facts.most is not None and not value <= facts.most:
            raise ConfigError(f"{name} = {value} is too large", f"it must be at most {facts.most}")
