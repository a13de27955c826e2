"""`codespec`: reads the command and runs it.

Knows the list of commands; knows nothing of what they do, and loads nothing heavy before one is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from codespec import __version__
from codespec.cli import bench, check, complete, doctor, lsp, models, serve, stats, train
from codespec.cli.ending import MISTAKE, one_line, run_to_exit_code

COMMANDS = (complete, serve, lsp, models, check, doctor, stats, train, bench)


class Parser(argparse.ArgumentParser):
    """argparse with one sentence instead of a usage block, for sub-commands as well; flags are never abbreviated."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, but a sub-command refuses what it does not know itself, and names its own help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and where help is, and exits with 2."""
        self.exit(MISTAKE, f"codespec: {one_line(message)}; see `{self.prog} --help`.\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run_to_exit_code(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = build_parser().parse_args(arguments)
    code: int = options.run(options)
    return code
