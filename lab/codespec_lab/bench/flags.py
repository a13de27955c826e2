"""Flags of a benchmark as the fields of its settings, and the settings that all benchmarks share."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any, ClassVar

from codespec.api.config import EngineConfig


def count(text: str, least: int = 1) -> int:
    """Parse a whole number of at least `least`, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {least} or more")
    return int(text)


def count_or_zero(text: str) -> int:
    """Parse a whole number, including 0, for argparse."""
    return count(text, 0)


def counts(text: str) -> tuple[int, ...]:
    """Parse distinct comma-separated whole numbers, sorted ascending, for argparse."""
    return tuple(sorted({count(part) for part in text.split(",")}))


def one_of(known: Mapping[str, Any] | Sequence[str], text: str) -> tuple[str, ...]:
    """Split comma-separated names. Raise ArgumentTypeError for one that is not in `known`."""
    named = tuple(text.split(","))
    unknown = [name for name in named if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return named


def flag(default: Any, help: str, *, rare: bool = False, name: str = "", **words: Any) -> Any:
    """Return a dataclass field that is a flag. `name` is the flag without "--" if it is not the field's name, and
    `words` go to argparse. --help leaves out a `rare` flag.
    """
    return field(default=default, metadata={"flag": (name, rare, {"default": default, "help": help, **words})})


def number(default: int | None, help: str, *, parse: Any = count, **words: Any) -> Any:
    """Return a field for a whole number of 1 or more."""
    return flag(default, help, type=parse, metavar="N", **words)


def numbers(default: tuple[int, ...], help: str) -> Any:
    """Return a field for comma-separated whole numbers."""
    return flag(default, help, type=counts, metavar="N,…")


def path(help: str, metavar: str = "FILE", **words: Any) -> Any:
    """Return a field for a path, None by default."""
    return flag(words.pop("default", None), help, type=Path, metavar=metavar, **words)


def switch(help: str, **words: Any) -> Any:
    """Return a field for a flag without a value."""
    return flag(False, help, action="store_true", **words)


def command_line(bench: str, flags: Mapping[str, Any]) -> str:
    """Return the user's command line without this machine's folders and without the output file."""
    words = ["codespec", "bench", bench]
    for name, value in flags.items():
        unset = value is None or value is False or value in ([], (), "")
        if unset or name in ("run", "json", "summary", "command", "bench"):
            continue
        flag = f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list) else [",".join(value) if isinstance(value, tuple) else value]
        words += [flag] if value is True else [flag, *(_without_folder(part) for part in values)]
    return shlex.join(words)


def _without_folder(value: object) -> str:
    text = str(value)
    return PurePath(text).name if isinstance(value, Path) or PurePath(text).is_absolute() else text


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings that all benchmarks share.

    module    the module of codespec_lab.bench with the SCENARIO
    about     a sentence for --help without capital and full stop; `note` stands below the flags
    engine    the engine's settings that are flags as well; (): all
    grows     whether the benchmark writes `file`, its --json file, itself as figures come
    daemon    whether it runs a daemon
    """

    config: EngineConfig
    file: Path | None = field(default=None, kw_only=True)

    module: ClassVar[str] = ""
    about: ClassVar[str] = ""
    note: ClassVar[str] = ""
    usage: ClassVar[str] = "[options]"
    engine: ClassVar[tuple[str, ...]] = ()
    grows: ClassVar[bool] = False
    daemon: ClassVar[bool] = False

    @classmethod
    def of(cls, config: EngineConfig, flags: Mapping[str, Any]) -> Bench:
        """Return the settings for `flags`, by name. Raise ConfigError for flags that exclude each other."""
        named = {setting.name: flags[setting.name] for setting in fields(cls) if "flag" in setting.metadata}
        return cls(config, file=flags["json"], **named).prepared(flags)

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Return the settings completed from flags that are not fields. Raise ConfigError as `of` does."""
        return self
