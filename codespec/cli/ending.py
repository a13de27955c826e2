"""How a command ends: its own exit code, one sentence and 2 for a user's mistake, quietly where nobody listens.

Knows exceptions, streams and exit codes; knows no command.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from codespec.errors import CodespecError

MISTAKE, INTERRUPTED = 2, 130


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
        return _complain(str(error))
    except BrokenPipeError:  # the reader (head, less) has gone: nothing is wrong
        _discard_output()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        return _complain("The output can't be written (no space left on the device): free some, or write elsewhere.")
    except KeyboardInterrupt:
        return INTERRUPTED


@dataclass(slots=True)
class Interruption:
    """Whether Ctrl-C was pressed. Libraries in C may clear a KeyboardInterrupt that rises in their callbacks."""

    seen: bool = False

    def check(self) -> None:
        """Raises it again if it was lost."""
        if self.seen:
            raise KeyboardInterrupt


@contextmanager
def remembering_interrupts() -> Iterator[Interruption]:
    """Ctrl-C raises KeyboardInterrupt as ever, and is remembered; where it is ignored (nohup) it stays ignored."""
    interruption = Interruption()

    def note(*_: object) -> None:
        interruption.seen = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield interruption
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)
    interruption.check()


def one_line(text: str) -> str:
    """The text without line breaks: names that users choose may hold some."""
    return " ".join(text.splitlines())


def _complain(sentence: str) -> int:
    print(f"codespec: {one_line(sentence).removesuffix('.')}.", file=sys.stderr)
    return MISTAKE


def _discard_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter's own last flush finds nothing to complain of."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
