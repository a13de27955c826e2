"""How a command ends: its own exit code, one sentence and 2 for a user's mistake or 1 for a text that codespec got
wrong, quietly where nobody listens.

Knows exceptions, streams and exit codes; knows no command.
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


def run_to_exit_code(command: Callable[[], int]) -> int:
    """Runs a command to its exit code; what a user can cause never ends in a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows \u2026 instead of failing
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where a broken pipe is still ours to answer; also behind --help
    except CodespecError as error:
        return _complain(str(error), MISMATCH if isinstance(error, MismatchError) else MISTAKE)
    except BrokenPipeError:  # the reader (head, less) has gone: nothing is wrong
        _discard(sys.stdout)
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard(sys.stdout)
        what = error.filename2 or error.filename or "The output"
        return _complain(
            f"{what} can't be written (no space left on the device): free some, or write elsewhere.", MISTAKE
        )
    except KeyboardInterrupt:
        return INTERRUPTED


def one_line(text: str) -> str:
    """The text without line breaks: names that users choose may hold some."""
    return " ".join(text.splitlines())


def _complain(sentence: str, code: int) -> int:
    try:
        print(f"codespec: {one_line(sentence).removesuffix('.')}.", file=sys.stderr, flush=True)
    except OSError:  # it is full or gone: the exit code is left
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """What is still buffered goes nowhere, so that the interpreter's own last flush finds nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
