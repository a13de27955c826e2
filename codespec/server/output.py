"""What the daemon prints, and whether it arrives: a full disk under its log ends no daemon, it is told in /health.

Knows streams and sizes; knows no words.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DROPPED = b"codespec: older lines were dropped here\n"
LOST = b"\ncodespec: lines that belong here could not be written\n"


class Output:
    """stdout and stderr. A file behind them is kept at `most` bytes or a little more (0: any size): where it is full,
    the older half goes.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.lock = RLock()  # both streams may be one file
        self._streams: list[_Lasting] = []

    @property
    def warning(self) -> str:
        """Why lines are lost, and the mend; "" where all can be written by now."""
        faults = [fault for stream in self._streams if (fault := stream.try_again())]
        return f"The daemon's log can't be written ({faults[0]}): make room on its disk." if faults else ""

    def over(self, stream: TextIO | None) -> TextIO | None:
        """A stream to the same place that takes whatever is written. A terminal, or what is no place of the system's,
        stays as it is.
        """
        try:
            if stream is None or stream.isatty():
                return stream
            raw = _Lasting(stream.fileno(), self)
        except (OSError, ValueError):  # a test's stream, or a closed one
            return stream
        with suppress(OSError):
            stream.flush()
        self._streams.append(raw)
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=stream.encoding, errors="backslashreplace", line_buffering=True
        )


class _Lasting(io.FileIO):
    """Takes all that is written to a place, and remembers why the last of it did not arrive."""

    def __init__(self, number: int, output: Output) -> None:
        super().__init__(number, "w", closefd=False)
        self._output = output
        self._fault = ""

    def write(self, data: ReadableBuffer, /) -> int:
        """Takes all of it, be it lost or not; what follows lost lines says so first."""
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

    def try_again(self) -> str:
        """Why the last line was lost; "" where there is room again."""
        if self._fault:
            self.write(b"")
        return self._fault

    def _make_room(self, size: int) -> None:
        """Drops a full file's older half; all of it where it is open for writing alone."""
        number, most = self.fileno(), self._output.most
        state = os.fstat(number)
        if not most or not stat.S_ISREG(state.st_mode) or state.st_size + size <= most:
            return
        newer = b""
        with suppress(OSError):
            newer = os.pread(number, most // 2, max(0, state.st_size - most // 2))
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
        os.write(number, DROPPED + newer[newer.find(b"\n") + 1 :])


@contextmanager
def lasting(most: int = 0) -> Iterator[Output]:
    """Until the block ends, whatever is printed can be printed."""
    output, former = Output(most), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (output.over(stream) for stream in former)
    try:
        yield output
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = former
