"""The command line's grammar and exit codes, with one sentence for every mistake.

`Parser` is argparse without abbreviated flags, and with rarely used settings only in --help-all. `run_to_exit_code`
converts the end of a command: a user's mistake prints one sentence and returns 2, a text that differs from plain
decoding returns 1, and a closed output pipe returns 0 silently.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from codespec.errors import CodespecError, MismatchError

MISMATCH, MISTAKE, INTERRUPTED = 1, 2, 130
FULL = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit of file sizes is reached",
}


class Parser(argparse.ArgumentParser):
    """The parser of `codespec` and of its sub-commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self._short: dict[argparse.Action, str] = {}  # the texts in --help of flags with more in --help-all

    def add_short(self, short: str, group: argparse._ActionsContainer, *flags: str, **settings: Any) -> None:
        """Add a flag whose text in --help is `short` (SUPPRESS: none); its `help` is in --help-all."""
        if not self._short:
            self.add_argument("--help-all", action=_HelpAll, help="show all settings and exit")
        self._short[group.add_argument(*flags, **settings)] = short

    def format_help(self) -> str:
        """Return the help with short texts and without the rare flags."""
        texts = {action: action.help for action in self._short}
        for action, text in self._short.items():
            action.help = text
        try:
            return super().format_help()
        finally:
            for action, whole in texts.items():
                action.help = whole

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but let a sub-command refuse unknown arguments itself and refer to its own help."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error and a reference to the help, and exit with 2."""
        self.exit(MISTAKE, f"codespec: {one_line(message)}; see `{self.prog} --help`.\n")


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(argparse.ArgumentParser.format_help(parser))
        parser.exit()


def run_to_exit_code(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. User errors never print a traceback."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows \u2026 instead of raising
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where a broken pipe can still be handled; also after --help
    except CodespecError as error:
        return _complain(str(error), MISMATCH if isinstance(error, MismatchError) else MISTAKE)
    except BrokenPipeError:  # the reader (head, less) has exited, which is no error
        _discard(sys.stdout)
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        _discard(sys.stdout)
        file = error.filename2 or error.filename or "The output"
        return _complain(f"{file} can't be written ({FULL[error.errno]}): free some, or write elsewhere.", MISTAKE)
    except KeyboardInterrupt:
        return INTERRUPTED


def one_line(text: str) -> str:
    """Return the text without line breaks, which names chosen by users may contain."""
    return " ".join(text.splitlines())


def _open_closed() -> None:
    """Open /dev/null as each standard stream that a supervisor closed.

    Otherwise Python's stream is None, and the descriptor becomes that of a socket or a file, which gets the output.
    """
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
    except OSError:  # stderr is full or closed: only the exit code is left
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, because the interpreter's final flush would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
