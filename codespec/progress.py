"""Show the progress of a long run on stderr: a live bar on a terminal, an occasional line in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LIVE_SECONDS, LOG_SECONDS = 0.5, 20.0  # between two updates
WIDTH = 24


class StageBar:
    """A status line that a terminal overwrites and a log repeats, at a limited rate.

    It shows the consecutive stages of a run, each with its own details.
    """

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = 0.0
        self._open = False  # the terminal's cursor is at the end of the bar

    def is_due(self, now: float) -> bool:
        """Return whether enough time has passed since the last update. If so, record `now` as the last update."""
        if now - self._shown < (LIVE_SECONDS if self._live else LOG_SECONDS):
            return False
        self._shown = now
        return True

    def update(self, share: float, details: str, *, ended: bool = False) -> None:
        """Show the stage's progress (0 to 1) and details, if an update is due or the stage has ended."""
        if self.is_due(time.monotonic()) or ended:
            self.show(min(1.0, share), details, ended=ended)

    def show(self, share: float, details: str, *, ended: bool = False) -> None:
        """Show the bar at `share` (0 to 1) and the details."""
        filled = int(WIDTH * share)
        line = f"{self.name} [{'#' * filled}{'.' * (WIDTH - filled)}] {share:6.1%}  {details}"
        self._stream.write(f"\r{line}" + ("\n" if ended else "") if self._live else f"{line.rstrip()}\n")
        self._stream.flush()
        self._open = self._live and not ended

    def note(self, text: str) -> None:
        """Print a separate line."""
        self._stream.write(("\n" if self._live else "") + f"{self.name}: {text}\n")
        self._stream.flush()
        self._open = False

    def close(self) -> None:
        """Finish an unfinished bar on a terminal with a line break."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False
