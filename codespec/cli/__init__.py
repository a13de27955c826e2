"""The command line: one file per command. An error becomes one sentence and exit code 2.

Imports nothing heavy before a command is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from codespec import __version__
from codespec.cli import check, complete, doctor, keys, lsp, models, serve, stats
from codespec.cli.parser import Parser, run_to_exit_code
from codespec.cli.parts import add_commands

COMMANDS = (complete, serve, lsp, models, check, doctor, stats, keys)


def build_parser(parts: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands. `parts` maps those of other packages to modules (default: the installed)."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    add_commands(commands, parts)
    return parser


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, str] | None = None) -> int:
    """Run the command line; return the exit code."""

    def run() -> int:
        parser = build_parser(parts)
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 0
        code: int = options.run(options)
        return code

    return run_to_exit_code(run)
