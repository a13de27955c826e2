"""The command line, with one module per command. Each command imports torch and other slow packages only when it runs.

Exit codes: 0 for success or if the reader of stdout has closed the pipe, 1 for a failed check or output that differs
from plain decoding, 2 for a user's mistake, and 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from codespec import __version__
from codespec.cli import check, complete, doctor, keys, lsp, models, serve, stats
from codespec.cli.options import MISTAKE, Parser, one_line
from codespec.cli.parts import add_commands
from codespec.errors import CodespecError, MismatchError

COMMANDS = (complete, serve, lsp, models, check, doctor, stats, keys)
MISMATCH, INTERRUPTED = 1, 130  # exit codes
FULL = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is exhausted",
    errno.EFBIG: "the limit on file sizes is reached",
}


def build_parser(parts: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands. `parts` maps other packages' commands to modules (None: installed modules)."""
    parser = Parser(prog="codespec", description="Code completion with lossless text-level speculation.")
    parser.add_argument("--version", action="version", version=f"codespec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        module.add_parser(commands)
    add_commands(commands, parts)
    return parser


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, str] | None = None) -> int:
    """Run the command line and return its exit code. `arguments` defaults to `sys.argv[1:]`."""

    def run() -> int:
        parser = build_parser(parts)
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 0
        return int(options.run(options))

    return run_to_exit_code(run)


def run_to_exit_code(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. A CodespecError is printed as one sentence, without a traceback."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows \u2026 instead of raising
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # also after --help; an error of a later flush could not be handled
    except CodespecError as error:
        return _complain(str(error), MISMATCH if isinstance(error, MismatchError) else MISTAKE)
    except BrokenPipeError:  # the reader, such as `head`, has exited
        _discard(sys.stdout)
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        _discard(sys.stdout)
        file = error.filename2 or error.filename or "The output"
        return _complain(f"{file} can't be written ({FULL[error.errno]}): free some space or write elsewhere.", MISTAKE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_closed() -> None:
    """Open /dev/null for each closed standard stream, so that no socket or file gets the stream's descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            mode, errors = ("r", "replace") if number == 0 else ("w", "backslashreplace")
            setattr(sys, name, open(number, mode, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115


def _complain(sentence: str, code: int) -> int:
    try:
        print(f"codespec: {one_line(sentence)}", file=sys.stderr, flush=True)
    except OSError:  # stderr can't be written, so only the exit code reports the error
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that the flush at the interpreter's exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
