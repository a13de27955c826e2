"""Where the engine's time goes. Knows seconds and counts of all requests together, nothing of one request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from codespec.types import Stats


@dataclass(slots=True)
class Metrics:
    """Sums since the engine was made (or `reset`): seconds by phase, each step counted once, and all requests'
    counts. `context_s`, following the syntax, is part of the other phases.
    """

    steps: int = 0
    context_s: float = 0.0
    draft_s: float = 0.0
    retokenize_s: float = 0.0
    verify_s: float = 0.0
    rest_s: float = 0.0
    totals: Stats = field(default_factory=Stats)

    @property
    def busy_s(self) -> float:
        """Seconds spent in steps."""
        return self.draft_s + self.retokenize_s + self.verify_s + self.rest_s

    def count(self, laps: Laps) -> None:
        """Adds one step."""
        self.steps += 1
        self.context_s += laps.context
        self.draft_s += laps.draft
        self.retokenize_s += laps.retokenize
        self.verify_s += laps.verify
        self.rest_s += laps.rest


class Laps:
    """Stopwatch of one step: `split` returns the seconds since the last split."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.context = self.draft = self.retokenize = self.verify = self.rest = 0.0

    def split(self) -> float:
        """Seconds since the last split (or the start)."""
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap
