"""Resolve settings by precedence: defaults < TOML file < environment < flags.

Names and types come from the fields of a dataclass. Unknown keys are errors, never ignored. Keys that only earlier
versions had are reported in a note and skipped.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from codespec.api.declared import declared
from codespec.errors import ConfigError
from codespec.files import NotUtf8, read_text

PREFIX = "CODESPEC_"
NO_SETTINGS = ("CODESPEC_NATIVE_PATH", "CODESPEC_PROMPTS", "CODESPEC_SERVE_TOKEN", "CODESPEC_TEST_CALLS")
TABLES = ("serve",)  # file tables with settings outside the engine; their variables are CODESPEC_SERVE_*
# Settings of earlier versions by table, with what to do instead. They have no effect.
REMOVED: Mapping[str, Mapping[str, str]] = {
    "": {
        "tensor_parallel": "remove it; for a model on several GPUs, use vLLM with plugins/vllm",
        "target_shape": "remove it; the benchmarks have --shape",
        "min_confidence": "remove it; the default policy learns how sure a drafter is",
    },
    "serve": dict.fromkeys(("memory_mb", "gather_places", "audit_every"), "remove it")
    | {"audit_log": "remove it; a proxy in front logs the requests"},
}
# Values of earlier versions by setting, up to a colon. They have no effect either.
REMOVED_VALUES: Mapping[str, tuple[str, ...]] = {"policy": ("confidence", "plus2minus1")}
# Old names of values by setting, for one version: old -> new.
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {name: {"int8": "native"} for name in ("dtype", "drafter_dtype")}
SPELLED_TRUE, SPELLED_FALSE = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True, slots=True)
class Level:
    """The values that one source sets. `place` names the source in messages."""

    place: str
    values: dict[str, Any]


class Settings:
    """The configuration file and the environment of one command.

    The file is read when a setting is first asked for, and once for all of them. Without a `file` it is the user's own,
    if it exists. `environment` None: the process's.
    """

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

    def levels(
        self, schema: type, flags: Mapping[str, Any], table: str = "", notes: MutableSequence[str] | None = None
    ) -> tuple[Level, Level, Level]:
        """Return the values set at each level for the fields of `schema`, which must all have defaults.

        The levels are the file's [table] (the top level for ""), CODESPEC_* variables (CODESPEC_TABLE_*) and flags that
        are not None. `notes` collects settings of earlier versions. Raises ConfigError.
        """
        messages: MutableSequence[str] = [] if notes is None else notes
        variables = os.environ if self._environment is None else self._environment
        set_by_flags = {key: _typed(schema, key, value, key) for key, value in flags.items() if value is not None}
        place = str(self.file or "")
        levels = (
            Level(place, _from_file(schema, self._values, place, table, messages)),
            Level("the environment", _from_environment(schema, variables, table, messages)),
            Level("the command line", set_by_flags),
        )
        for level in levels:
            messages.extend(_rename(level))
        return levels


def user_file() -> Path | None:
    """Return the user's configuration file, or None if it does not exist.

    A file that exists but can't be read is returned, so the error is reported when it is read.
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


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except OSError as error:
        raise ConfigError(
            f"The configuration file {file} can't be read ({error.strerror or error})", "check its path"
        ) from error
    except NotUtf8 as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text ({error})", "save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: a number may have too many digits
        raise ConfigError(f"The configuration file {file} is not valid TOML ({error})", "fix that line") from error


def _from_file(
    schema: type, values: Mapping[str, Any], place: str, table: str, notes: MutableSequence[str]
) -> dict[str, Any]:
    own = values.get(table, {}) if table else {key: value for key, value in values.items() if key not in TABLES}
    if not isinstance(own, dict):
        raise ConfigError(f"{table} in {place} must be a table", f"write [{table}] and its settings below")
    labels = _without_removed({key: f"{key} in {place}" for key in own}, own, table, notes)
    return {key: _typed(schema, key, own[key], label) for key, label in labels.items()}


def _from_environment(
    schema: type, environment: Mapping[str, str], table: str, notes: MutableSequence[str]
) -> dict[str, Any]:
    prefix, others = PREFIX + (f"{table.upper()}_" if table else ""), [PREFIX + name.upper() + "_" for name in TABLES]
    labels = {
        name[len(prefix) :].lower(): name
        for name in environment
        if name.startswith(prefix) and name not in NO_SETTINGS and (table or not name.startswith(tuple(others)))
    }
    names = _without_removed(labels, {key: environment[name] for key, name in labels.items()}, table, notes)
    read = {key: _read_text(schema, key, environment[name], name) for key, name in names.items()}
    return {key: _typed(schema, key, read[key], name) for key, name in names.items()}


def _without_removed(
    labels: Mapping[str, str], values: Mapping[str, Any], table: str, notes: MutableSequence[str]
) -> dict[str, str]:
    """Return the labels by key without settings and values that only earlier versions had. `notes` lists those."""
    removed = dict(REMOVED.get(table, {}))
    for key in labels:
        if str(values[key]).partition(":")[0] in REMOVED_VALUES.get(key, ()):
            removed[key] = "remove it; `codespec bench policy` compares it with the others"
    notes.extend(f"{label} has no effect any more: {removed[key]}" for key, label in labels.items() if key in removed)
    return {key: label for key, label in labels.items() if key not in removed}


def _rename(level: Level) -> Iterator[str]:
    """Replace old names of values in a level, and yield a note for each."""
    for key, names in RENAMED_VALUES.items():
        if new := names.get(level.values.get(key, "")):
            yield f"{key} = {level.values[key]!r} of {level.place} is an old name: write {new!r}"
            level.values[key] = new


def _typed(schema: type, key: str, value: Any, label: str) -> Any:
    """Return a value with the setting's type, converting whole numbers to floats. Raises ConfigError for others."""
    kind = _kind(schema, key, label)
    if value == "auto" and declared(schema)[key].automatic:
        return 0
    if kind is dict and isinstance(value, dict):
        return _flat(value)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{label} = {value!r}", f"it must be {_article(kind)}")
    return value


def _read_text(schema: type, key: str, text: str, label: str) -> Any:
    """Convert a variable's text to the setting's type, or return the text unchanged if that fails."""
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
    """Return a setting's type, taken from its default. Raises ConfigError for an unknown setting."""
    known = [item.name for item in fields(schema)]
    if key not in known:
        raise ConfigError(f"Unknown setting {label}", f"known are {', '.join(known)}")
    return type(getattr(schema(), key))


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table"}[kind]


def read_caps(text: str) -> dict[str, int]:
    """Parse caps such as comment=10,python.docstring=0. Raises ConfigError for invalid text."""
    pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    if any(not re.fullmatch(r"\d{1,3}", number.strip()) for _, _, number in pairs):
        raise ConfigError(f"caps = {text!r}", "write class=tokens, for example comment=10,python.docstring=0")
    return {name.strip(): int(number) for name, _, number in pairs}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat.update(_flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value})
    return flat
