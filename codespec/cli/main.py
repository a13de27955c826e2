"""`codespec`: reads the command and runs it.

Knows the list of commands; knows nothing of what they do, and loads nothing heavy before one is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from codespec import __version__
from codespec.cli import benches, check, complete, distill, doctor, lsp, models, serve, stats, train
from codespec.cli.ending import run_to_exit_code
from codespec.cli.parser import Parser

COMMANDS = (complete, serve, lsp, models, check, doctor, stats, train, distill, benches)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run_to_exit_code(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    code: int = options.run(options)
    return code
