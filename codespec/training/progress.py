"""Shows a run's progress: a bar on a terminal, lines in a log. Knows numbers, not what makes them."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LOG_SECONDS = 20.0
SMOOTHING = 0.98


class Bar:
    """Loss, tokens per second and time left of one run."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self._name = name
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = 0.0
        self._loss, self._rate = 0.0, 0.0

    def update(self, *, step: int, progress: float, loss: float, tokens: int, seconds: float, used: float) -> None:
        """Take in one step: its loss in nats, tokens and seconds; `used` are the run's working seconds."""
        rate = tokens / max(seconds, 1e-9)
        self._loss = loss if not self._loss else SMOOTHING * self._loss + (1 - SMOOTHING) * loss
        self._rate = rate if not self._rate else SMOOTHING * self._rate + (1 - SMOOTHING) * rate
        now = time.monotonic()
        if now - self._shown < (0.5 if self._live else LOG_SECONDS) and progress < 1.0:
            return
        self._shown = now
        left = used * (1 - progress) / progress if progress > 0 else 0.0
        filled = int(24 * progress)
        self._write(
            f"{self._name} [{'#' * filled}{'.' * (24 - filled)}] {progress:6.1%}  step {step}  "
            f"loss {self._loss:.3f}  {self._rate:,.0f} tok/s  {left / 60:.1f} min left"
        )

    def note(self, text: str) -> None:
        """Print one line of its own."""
        if self._live:
            self._stream.write("\n")
        self._stream.write(f"{self._name}: {text}\n")
        self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line}" if self._live else f"{line}\n")
        self._stream.flush()


class Steps:
    """How many of `total` equal steps are done."""

    def __init__(self, name: str, total: int, stream: TextIO | None = None) -> None:
        self._name, self._total, self._done = name, max(1, total), 0
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._begun = self._shown = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Shows that `count` more steps are done."""
        self._done += count
        now, ended = time.monotonic(), self._done >= self._total
        if now - self._shown < (0.5 if self._live else LOG_SECONDS) and not ended:
            return
        self._shown = now
        share = min(1.0, self._done / self._total)
        left = (now - self._begun) * (1 - share) / share
        filled = int(24 * share)
        line = f"{self._name} [{'#' * filled}{'.' * (24 - filled)}] {share:6.1%}  {left / 60:.1f} min left"
        self._stream.write(f"\r{line}" + ("\n" if ended else "") if self._live else f"{line}\n")
        self._stream.flush()
