"""Progress bars of trainings and benchmarks, on `codespec.store.disk`'s status line."""

from __future__ import annotations

import time
from typing import TextIO

from codespec.store.disk import StageBar

SMOOTHING = 0.98


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
