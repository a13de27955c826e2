"""Progress bars of trainings, benchmarks and the demo, on a status line."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LIVE_SECONDS, LOG_SECONDS = 0.5, 20.0  # between two updates
WIDTH = 24
SMOOTHING = 0.98


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


class TrainingBar:
    """Show the loss, tokens per second and remaining time of a training run."""

    def __init__(self, name: str) -> None:
        self._line = StageBar(name)
        self._loss, self._rate = 0.0, 0.0

    def update(self, *, step: int, progress: float, loss: float, tokens: int, seconds: float, used: float) -> None:
        """Add one step: its loss in nats, its tokens and its seconds.

        `used` is the working time of the run so far.
        """
        self._loss, self._rate = _smooth(self._loss, loss), _smooth(self._rate, tokens / max(seconds, 1e-9))
        if self._line.is_due(time.monotonic()) or progress >= 1.0:
            left = used * (1 - progress) / progress if progress > 0 else 0.0
            details = f"step {step}  loss {self._loss:.3f}  {self._rate:,.0f} tok/s  {left / 60:.1f} min left"
            self._line.show(progress, details)

    def note(self, text: str) -> None:
        """Print a separate line."""
        self._line.note(text)


class ProgressBar:
    """Show how many of `total` equal steps are done, and the remaining time."""

    def __init__(self, name: str, total: int, stream: TextIO | None = None) -> None:
        self._line = StageBar(name, stream)
        self._total, self._done = max(1, total), 0
        self._started = time.monotonic()
        self._line.is_due(self._started)

    def advance(self, count: int = 1) -> None:
        """Count `count` more steps."""
        self._done += count
        now, ended = time.monotonic(), self._done >= self._total
        if self._line.is_due(now) or ended:
            share = min(1.0, self._done / self._total)
            left = (now - self._started) * (1 - share) / share
            self._line.show(share, f"{left / 60:.1f} min left", ended=ended)


def _smooth(average: float, value: float) -> float:
    return SMOOTHING * average + (1 - SMOOTHING) * value if average else value
