"""The daemon's log and output. No line holds a client's text, and a full disk under them does not end the daemon:
/health reports it instead.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = logging.getLogger("codespec.server")
DROPPED = b"codespec: older lines were dropped here\n"
LOST = b"\ncodespec: lines that belong here could not be written\n"


def log_failure(what: str, error: BaseException) -> None:
    """Logs what failed, the kind of error and our lines, but not its message, which may hold source text."""
    log.error("%s (%s)\n%s", what, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def start_logging(access: bool) -> None:
    """Writes the log to stderr; with `access`, a line for each request too."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if access else logging.WARNING)
    log.propagate = False


class Output:
    """stdout and stderr. A file behind them stays at about `most` bytes (0: any size): when it is full, its older half
    is dropped.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.lock = RLock()  # both streams may be one file
        self._streams: list[_SafeStream] = []

    @property
    def warning(self) -> str:
        """Why lines are lost, and the mend; "" if all can be written by now."""
        faults = [fault for stream in self._streams if (fault := stream.retry())]
        return f"The daemon's log can't be written ({faults[0]}): make room on its disk." if faults else ""

    def wrap(self, stream: TextIO | None) -> TextIO | None:
        """A stream to the same file that accepts everything. A terminal stays as it is, and so does a stream without a
        file descriptor.
        """
        try:
            if stream is None or stream.isatty():
                return stream
            raw = _SafeStream(stream.fileno(), self)
        except (OSError, ValueError):  # a test's stream, or a closed one
            return stream
        with suppress(OSError):
            stream.flush()
        self._streams.append(raw)
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=stream.encoding, errors="backslashreplace", line_buffering=True
        )


class _SafeStream(io.FileIO):
    """Accepts everything, and remembers why the last write failed."""

    def __init__(self, number: int, output: Output) -> None:
        super().__init__(number, "w", closefd=False)
        self._output = output
        self._fault = ""

    def write(self, data: ReadableBuffer, /) -> int:
        """Accepts all of it, even if it is lost; the next line that arrives says that lines were lost."""
        new = bytes(data)
        with self._output.lock:
            left = LOST + new if self._fault else new
            try:
                self._make_room(len(left))
                while left:
                    left = left[os.write(self.fileno(), left) :]
                self._fault = ""
            except OSError as error:
                self._fault = error.strerror or type(error).__name__
        return len(new)

    def retry(self) -> str:
        """Why the last line was lost; "" if there is room again."""
        if self._fault:
            self.write(b"")
        return self._fault

    def _make_room(self, size: int) -> None:
        """Drops a full file's older half, or all of it if it cannot be read."""
        number, most = self.fileno(), self._output.most
        state = os.fstat(number)
        if not most or not stat.S_ISREG(state.st_mode) or state.st_size + size <= most:
            return
        newer = b""
        with suppress(OSError):
            newer = os.pread(number, state.st_size, most // 2)
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
        os.write(number, DROPPED + newer[newer.find(b"\n") + 1 :])


@contextmanager
def safe_output(most: int = 0) -> Iterator[Output]:
    """Until the block ends, printing never fails."""
    output, former = Output(most), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (output.wrap(stream) for stream in former)
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = former
