"""`codespec`: reads the command and runs it.

Knows the list of commands; knows nothing of what they do, and loads nothing heavy before one is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from codespec import __version__
from codespec.cli import check, complete, doctor, lsp, models, serve, stats
from codespec.cli.ending import run_to_exit_code
from codespec.cli.laboratory import add_laboratory
from codespec.cli.parser import Parser

COMMANDS = (complete, serve, lsp, models, check, doctor, stats)


def build_parser(laboratory: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. `laboratory` maps its commands to modules (default: what is installed)."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    add_laboratory(commands, laboratory)
    return parser


def main(arguments: Sequence[str] | None = None, laboratory: Mapping[str, str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run_to_exit_code(lambda: _run(build_parser(laboratory), arguments))


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    code: int = options.run(options)
    return code
