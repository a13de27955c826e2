"""`codespec`: reads the command, runs it, turns our errors into one sentence on standard error and exit code 2.

Knows the list of commands; knows nothing of what they do.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from codespec.cli import check, complete, train
from codespec.errors import CodespecError

COMMANDS = (complete, check, train)


class Parser(argparse.ArgumentParser):
    """argparse with one sentence instead of a usage block."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and where help is, and exits with 2."""
        self.exit(2, f"codespec: {message}; see `{self.prog} --help`.\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="codespec",
        description="Code completion with lossless text-level speculation.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except CodespecError as error:
        print(f"codespec: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has gone: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code
