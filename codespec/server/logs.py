"""The daemon's log, and replacements for stdout and stderr that survive a full disk; /health reports write errors.

No line of the log contains a client's text, a path, a document's name or any other string from a client.
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
LOST = b"\ncodespec: lines are missing here because they could not be written\n"


def log_failure(what: str, error: BaseException) -> None:
    """Log the type and traceback of an exception, but not its message, which may contain source text."""
    log.error("%s (%s)\n%s", what, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


def start_logging(access: bool) -> None:
    """Write the log to stderr, with a line for each request if `access` is set."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if access else logging.WARNING)
    log.propagate = False


class LogOutput:
    """stdout and stderr. At about `most` bytes (0: no limit), a log file loses its older half."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.lock = RLock()  # both streams may write to one file
        self._streams: list[_SafeStream] = []

    @property
    def warning(self) -> str:
        """A sentence that says why log lines can't be written, or ""."""
        faults = [fault for stream in self._streams if (fault := stream.retry())]
        return f"The daemon's log can't be written ({faults[0]}): make room on its disk." if faults else ""

    def wrap(self, stream: TextIO | None) -> TextIO | None:
        """Return a stream to the same file that never raises on write, or a terminal's stream unchanged."""
        try:
            if stream is None or stream.isatty():
                return stream
            raw = _SafeStream(stream.fileno(), self)
        except (OSError, ValueError):  # a stream without a file, or a closed one
            return stream
        with suppress(OSError):
            stream.flush()
        self._streams.append(raw)
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=stream.encoding, errors="backslashreplace", line_buffering=True
        )


class _SafeStream(io.FileIO):
    """A stream that never raises on write. `_fault` is the reason why the last write failed, or ""."""

    def __init__(self, number: int, output: LogOutput) -> None:
        super().__init__(number, "w", closefd=False)
        self._output = output
        self._fault = ""

    def write(self, data: ReadableBuffer, /) -> int:
        """Accept all data, even if writing fails; the next successful write begins with a note about the lost lines."""
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
        """If the last write failed, try again. Return the reason why writing still fails, or ""."""
        if self._fault:
            self.write(b"")
        return self._fault

    def _make_room(self, size: int) -> None:
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
def safe_output(most: int = 0) -> Iterator[LogOutput]:
    """Within the `with` block, replace stdout and stderr with streams that never raise on write."""
    output, former = LogOutput(most), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (output.wrap(stream) for stream in former)
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = former
