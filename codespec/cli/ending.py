"""Convert the end of a command to an exit code.

A user's mistake prints one sentence and returns 2, a wrong text returns 1, and a closed output pipe ends quietly.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from codespec.errors import CodespecError, MismatchError

MISMATCH, MISTAKE, INTERRUPTED = 1, 2, 130
FULL = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit of file sizes is reached",
}


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
        what = error.filename2 or error.filename or "The output"
        return _complain(f"{what} can't be written ({FULL[error.errno]}): free some, or write elsewhere.", MISTAKE)
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
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _complain(sentence: str, code: int) -> int:
    try:
        print(f"codespec: {one_line(sentence)}", file=sys.stderr, flush=True)
    except OSError:  # stderr is full or closed: only the exit code is left
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that the interpreter's final flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
