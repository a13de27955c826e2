"""Declare settings, and resolve their values from flags, the environment, the TOML file and defaults, in this order.

A setting is a dataclass field. The declaration of a setting determines the value checks, the flags of every command
(`cli.options`) and the tables of docs/settings.md and docs/editors.md (`python -m tools.settings_page`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from codespec.api.limits import ValueSpec
from codespec.errors import ConfigError
from codespec.files import NotUtf8, read_text
from codespec.user_folders import config_folder

PREFIX = "CODESPEC_"
NO_SETTINGS = ("CODESPEC_NATIVE_PATH", "CODESPEC_PROMPTS", "CODESPEC_SERVE_TOKEN")
TABLES = ("serve",)  # tables of the file for other settings than the engine's; their variables are CODESPEC_SERVE_*
BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(ValueSpec):
    """Metadata of a setting. `help` is Markdown, for the documentation and for `--help`."""

    shown: str = ""  # the default in Markdown ("": the value itself)
    metavar: str | None = None  # the placeholder of the value in `--help`
    automatic: bool = False  # whether 0, or `auto`, means that the value is measured
    common: bool = False  # whether `--help` shows the flag, not only `--help-all`


def plain(help: str) -> str:
    """Return Markdown text with links and backquotes removed. A link in parentheses is removed with its text."""
    help = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", help)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", help).replace("`", "")


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Return a dataclass field that declares a setting. A callable default becomes the field's `default_factory`."""
    if facts.get("automatic"):
        facts = {"shown": "`auto`", "metavar": "N|auto", **facts}
    elif type(default) is int:
        facts = {"metavar": "N", **facts}
    elif default == "":
        facts = {"shown": "none", **facts}
    metadata = {"setting": Setting(help, **facts)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(schema: type) -> dict[str, Setting]:
    return {item.name: item.metadata["setting"] for item in fields(schema)}


def check_values(settings: Any) -> None:
    """Raise ConfigError for the first value that is not among its setting's choices or within its range."""
    for name, facts in declared(type(settings)).items():
        value = getattr(settings, name)
        if facts.choices and value not in facts.choices:
            raise ConfigError(f"{name} = {value!r} is unknown", f"choose one of {', '.join(facts.choices)}")
        if facts.automatic and value == 0:
            continue
        if facts.least is not None and not value >= facts.least:  # NaN fails this test too
            raise ConfigError(f"{name} = {value} is too small", f"it must be at least {facts.least}")
        if facts.most is not None and not value <= facts.most:
            raise ConfigError(f"{name} = {value} is too large", f"it must be at most {facts.most}")


@dataclass(frozen=True, slots=True)
class Level:
    """The settings from one source. `place` is the name of the source in error messages."""

    place: str
    values: dict[str, Any]


class Settings:
    """The settings in a configuration file (None: the user's own, if any) and an environment (None: the process's)."""

    def __init__(self, file: Path | str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._named, self._environment = None if file is None else Path(file), environment

    @cached_property
    def file(self) -> Path | None:
        return self._named or user_file()

    @property
    def is_own(self) -> bool:
        return self._named is None and self.file is not None

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return _parse(self.file) if self.file else {}

    def levels(self, schema: type, flags: Mapping[str, Any], table: str = "") -> tuple[Level, Level, Level]:
        """Return the settings of a dataclass from the file's `table` ("": the top level), the environment and flags.

        Flags with the value None are ignored. Raise ConfigError for an unknown setting or an invalid value.
        """
        variables = os.environ if self._environment is None else self._environment
        set_by_flags = {key: _typed(schema, key, value, key) for key, value in flags.items() if value is not None}
        place = str(self.file or "")
        return (
            Level(place, _from_file(schema, self._values, place, table)),
            Level("the environment", _from_environment(schema, variables, table)),
            Level("the command line", set_by_flags),
        )


def user_file() -> Path | None:
    """Return the user's configuration file, or None if it does not exist."""
    file = config_folder() / "config.toml"
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # reported when the file is read
        pass
    return file


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except OSError as error:
        what = f"The configuration file {file} can't be read ({error.strerror or error})"
        raise ConfigError(what, "check its path") from error
    except NotUtf8 as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text ({error})", "save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"The configuration file {file} is not valid TOML ({error})", "correct its syntax") from error


def _from_file(schema: type, values: Mapping[str, Any], place: str, table: str) -> dict[str, Any]:
    own = values.get(table, {}) if table else {key: value for key, value in values.items() if key not in TABLES}
    if not isinstance(own, dict):
        raise ConfigError(f"{table} in {place} must be a table", f"write a line [{table}] above its settings")
    return {key: _typed(schema, key, value, f"{key} in {place}") for key, value in own.items()}


def _from_environment(schema: type, environment: Mapping[str, str], table: str) -> dict[str, Any]:
    prefix = f"{PREFIX}{table.upper()}_" if table else PREFIX
    others = () if table else tuple(f"{PREFIX}{name.upper()}_" for name in TABLES)
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name.startswith(prefix) and not name.startswith(others) and name not in NO_SETTINGS:
            key = name[len(prefix) :].lower()
            values[key] = _typed(schema, key, _read_text(schema, key, text, name), name)
    return values


def _typed(schema: type, key: str, value: Any, label: str) -> Any:
    """Return a value with its setting's type (a whole number may become a float), or raise ConfigError."""
    kind = _kind(schema, key, label)
    if value == "auto" and declared(schema)[key].automatic:
        return 0
    if kind is dict and isinstance(value, dict):
        return _flat(value)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table"}
        raise ConfigError(f"{label} = {value!r} is invalid", f"it must be {kinds[kind]}")
    return value


def _read_text(schema: type, key: str, text: str, label: str) -> Any:
    """Convert the text of an environment variable to its setting's type. Return invalid text unchanged."""
    kind = _kind(schema, key, label)
    if kind is bool:
        return BOOLEANS.get(text.lower(), text)
    if kind is dict:
        return read_caps(text)
    try:
        return kind(text)
    except ValueError:
        return text


def _kind(schema: type, key: str, label: str) -> type:
    known = [item.name for item in fields(schema)]
    if key not in known:
        near = get_close_matches(key, known, 1)
        fix = f"the closest is {near[0]}" if near else f"choose one of {', '.join(known)}"
        raise ConfigError(f"Unknown setting {label}", fix)
    return type(getattr(schema(), key))


def read_caps(text: str) -> dict[str, int]:
    """Parse draft caps such as comment=10,python.docstring=0. Raise ConfigError for invalid text."""
    pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    if any(not re.fullmatch(r"\d{1,3}", number.strip()) for _, _, number in pairs):
        raise ConfigError(
            f"caps = {text!r} is invalid", "write class=tokens, for example comment=10,python.docstring=0"
        )
    return {name.strip(): int(number) for name, _, number in pairs}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat.update(_flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value})
    return flat
