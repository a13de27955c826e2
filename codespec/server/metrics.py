"""Request metrics as clients see them: waiting times, outcomes and refusals.

Lives on the event loop, so it needs no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from codespec.engine.queue import Priority
from codespec.errors import CodespecError, RequestError, ServeError, UpstreamError
from codespec.server.handles import RequestHandle

# A keystroke's completion is useful within a few hundred milliseconds, so the bounds are densest there.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)


class Histogram:
    """Counts of values by upper bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value. Bounds are inclusive."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return pairs of bound and cumulative count, in Prometheus' format. The last bound is +Inf."""
        ends = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))


class RequestMetrics:
    """Totals over all requests since the daemon started.

    `requests` counts by priority, `completions` counts choices by finish reason, `cancelled` counts requests by the
    cause of cancellation, `failed` by the party at fault, and `refused` by reason. Times (seconds) cover only completed
    requests for text.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.completions: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter(superseded=0, disconnected=0, deadline=0)
        self.failed: Counter[str] = Counter(request=0, engine=0, stopping=0)
        self.refused: Counter[str] = Counter(queue_full=0, not_ready=0)
        self.queue = Histogram(SECONDS)
        self.to_first_text = Histogram(SECONDS)
        self.to_end = Histogram(SECONDS)

    def end(self, handle: RequestHandle) -> None:
        """Add a finished request."""
        self.requests[handle.priority.name.lower()] += 1
        reasons = [completion.finish_reason for completion in handle.finished]
        self.completions.update(reasons)
        if handle.error is not None:
            self.failed[_fault(handle.error)] += 1
        elif handle.ended is None:
            self.cancelled["disconnected"] += 1
        elif "cancelled" in reasons:
            self.cancelled["superseded"] += 1
        else:
            self.cancelled["deadline"] += "deadline" in reasons
            if handle.priority == Priority.INTERACTIVE:
                self._time(handle, handle.ended - handle.arrived)

    def _time(self, handle: RequestHandle, total: float) -> None:
        self.to_end.observe(total)
        queued = [completion.stats.queue_ms / 1000 for completion in handle.finished if completion.stats.rounds]
        self.queue.observe(min(queued, default=total))
        if handle.first_text is not None:
            self.to_first_text.observe(handle.first_text - handle.arrived)


def _fault(error: CodespecError) -> str:
    if isinstance(error, RequestError):
        return "request"
    if isinstance(error, UpstreamError):
        return "upstream"
    return "stopping" if isinstance(error, ServeError) and error.status == 503 else "engine"
