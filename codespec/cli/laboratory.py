"""Add the commands of the laboratory (`lab/`), a separate package that no editor needs.

The commands are found through the entry-point group `codespec.commands`. If the package is missing, each command stays
in the overview and prints how to install it. Other names in the group are ignored.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from codespec.errors import ConfigError

GROUP = "codespec.commands"
NAMES = {
    "train": "train a target and a drafter",
    "distill": "train a drafter on its target's output in your code",
    "bench": "measure on this machine",
}


def add_laboratory(commands: Any, modules: Mapping[str, str] | None = None) -> None:
    """Add every command of the laboratory, or a placeholder if it is not installed.

    `modules` maps commands to modules; by default they come from the entry points.
    """
    found = modules if modules is not None else {point.name: point.value for point in entry_points(group=GROUP)}
    for name, purpose in NAMES.items():
        if name in found:
            importlib.import_module(found[name]).add_parser(commands)
        else:
            _add_missing(commands, name, purpose)


def _add_missing(commands: Any, name: str, purpose: str) -> None:
    no_flags = {"add_help": False, "prefix_chars": "\0"}  # treat all that follows as words, including `--help`
    parser: argparse.ArgumentParser = commands.add_parser(name, help=f"{purpose} (not installed)", **no_flags)
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_refuse)


def _refuse(options: argparse.Namespace) -> int:
    raise ConfigError(
        f"`codespec {options.command}` is in codespec's laboratory, which is not installed",
        "run `pip install ./lab` in codespec's checkout",
    )
