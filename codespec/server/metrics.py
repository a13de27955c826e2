"""What became of requests, as their clients saw it: how long they waited, how they ended, who was turned away.

Lives on the event loop, so nothing here is locked. Knows tickets' messages; knows no engine and no format.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from codespec.errors import CodespecError, RequestError, ServeError
from codespec.server.metrics_format import Histogram
from codespec.types import Completion, DoneEvent, Event, TextEvent

# A keystroke's completion is worth having within some hundred milliseconds, so the bounds are densest there.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)


@dataclass(slots=True)
class Course:
    """One ticket's way: when it came, when its first text and its end did (seconds of perf_counter), how it ended."""

    arrived: float = field(default_factory=time.perf_counter)
    first_text: float | None = None
    ended: float | None = None
    completions: list[Completion] = field(default_factory=list)
    error: CodespecError | None = None

    def note(self, message: Event | CodespecError, last: bool) -> None:
        """Takes one message on its way to the client; nothing comes behind the last."""
        if isinstance(message, TextEvent) and self.first_text is None:
            self.first_text = time.perf_counter()
        elif isinstance(message, DoneEvent):
            self.completions.append(message.completion)
        elif isinstance(message, CodespecError):
            self.error = message
        if last:
            self.ended = time.perf_counter()


class RequestMetrics:
    """Sums over all requests since the daemon began. `kind` is a priority's name.

    `completions` counts choices by finish reason, `cancelled` requests by why nobody wants them any more, `failed` by
    whose fault it was, `refused` by why they were not taken. Times are of requests for text that reached their end.
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

    def end(self, course: Course, kind: str, timed: bool) -> None:
        """Adds a request that its handler is done with."""
        self.requests[kind] += 1
        self.completions.update(completion.finish_reason for completion in course.completions)
        reasons = {completion.finish_reason for completion in course.completions}
        if course.error is not None:
            self.failed[_fault(course.error)] += 1
        elif course.ended is None:
            self.cancelled["disconnected"] += 1
        elif "cancelled" in reasons:
            self.cancelled["superseded"] += 1
        else:
            self.cancelled["deadline"] += "deadline" in reasons
            if timed:
                self._time(course)

    def _time(self, course: Course) -> None:
        assert course.ended is not None
        self.to_end.observe(course.ended - course.arrived)
        began = [completion.stats.queue_ms / 1000 for completion in course.completions if completion.stats.rounds]
        self.queue.observe(min(began, default=course.ended - course.arrived))
        if course.first_text is not None:
            self.to_first_text.observe(course.first_text - course.arrived)


def _fault(error: CodespecError) -> str:
    if isinstance(error, RequestError):
        return "request"
    return "stopping" if isinstance(error, ServeError) and error.status == 503 else "engine"
