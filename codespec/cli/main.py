"""`codespec`: parse the command line and run the command.

Imports nothing heavy before a command is chosen. The commands of the laboratory (`lab/`), a separate package that no
editor needs, are found through the entry-point group `codespec.commands`; other names in the group are ignored.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from codespec import __version__
from codespec.cli import check, complete, doctor, keys, lsp, models, scale, serve, stats
from codespec.cli.parser import Parser, run_to_exit_code
from codespec.errors import ConfigError

COMMANDS = (complete, serve, scale, lsp, models, check, doctor, stats, keys)
GROUP = "codespec.commands"
NAMES = {  # of the laboratory's commands
    "train": "train a target and a drafter",
    "distill": "train a drafter on its target's output in your code",
    "bench": "measure on this machine",
}


def build_parser(laboratory: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands. `laboratory` maps its commands to modules (default: the installed ones)."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    add_laboratory(commands, laboratory)
    return parser


def main(arguments: Sequence[str] | None = None, laboratory: Mapping[str, str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return run_to_exit_code(lambda: _run(build_parser(laboratory), arguments))


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    code: int = options.run(options)
    return code


def add_laboratory(commands: Any, modules: Mapping[str, str] | None = None) -> None:
    """Add every command of the laboratory, or a placeholder if it is not installed.

    `modules` maps commands to modules; by default they come from the entry points.
    """
    installed = modules if modules is not None else {point.name: point.value for point in entry_points(group=GROUP)}
    for name, purpose in NAMES.items():
        if name in installed:
            importlib.import_module(installed[name]).add_parser(commands)
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
