"""Request handles: a request in progress as its HTTP handler sees it, with the events for its client. Also totals.

Handles belong to the event loop; the engine's thread only passes them on. A slow client does not delay others, because
its handle buffers its unread events, at most one completion.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from codespec.contract.types import Completion, CompletionRequest, DoneEvent, Event, Owner, RoundEvent
from codespec.engine.queue import Job, Priority, priority_of
from codespec.errors import CodespecError, RequestError, ServeError
from codespec.text.edit_hunks import Window

# A keystroke's completion is useful within a few hundred milliseconds, so the bounds are densest there.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a request that failed, possibly after a part of its text."""

    error: CodespecError


Message = Event | Failed


class RequestHandle:
    """One client's request: its priority, its place in the queue (`job`, which equal requests share) and its events.

    `notes` explain to the client how its request was read. The handles of one request share a `batch`. The text ends
    once it has rewritten the `window`. `arrived` is in seconds of perf_counter.
    """

    def __init__(
        self,
        request: CompletionRequest,
        priority: Priority | None = None,
        notes: Iterable[str] = (),
        batch: object = None,
        window: Window | None = None,
    ) -> None:
        self.window = window
        self.batch = self if batch is None else batch
        self.request = request
        self.priority = priority_of(request) if priority is None else priority
        self.notes = tuple(notes)
        self.arrived = time.perf_counter()
        self.session = ""  # the client's x-session-id: requests of one document share it
        self.job: Job | None = None  # set and used on the engine's thread
        self.first_text: float | None = None
        self.ended: float | None = None  # arrival of the last message
        self.finished: list[Completion] = []  # the completed choices
        self.error: CodespecError | None = None
        self._open_choices = set(range(request.n))
        self._written = dict.fromkeys(self._open_choices, 0)  # tokens by choice
        self._messages: deque[Message] = deque()
        self._received = asyncio.Event()

    @property
    def owner(self) -> Owner:
        """The client and the document being edited; "" if the client did not name one."""
        return self.request.owner

    @property
    def over(self) -> bool:
        """Whether the request has ended."""
        return self.ended is not None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 until a choice is complete."""
        return self.finished[0].stats.prompt_tokens if self.finished else 0

    @property
    def num_tokens(self) -> int:
        """Tokens written so far, over all choices."""
        return sum(self._written.values())

    @property
    def waits(self) -> bool:
        """Whether the request is still waiting for the engine."""
        return not self.over and self.first_text is None and not (self.job and self.job.sequences)

    def supersedes(self, older: RequestHandle) -> bool:
        """Return whether it supersedes an older request for its document.

        A warm-up supersedes no request for text. Edits and completions of a document do not supersede each other.
        """
        if not self.owner.document or self.owner != older.owner or self.batch is older.batch:
            return False
        kinds = {self.priority == Priority.EDIT, older.priority == Priority.EDIT}
        return len(kinds) == 1 and self.priority <= older.priority

    def push(self, messages: Iterable[Message]) -> None:
        """Add messages from the engine's thread. Drop those that arrive after the end."""
        for message in messages:
            if not self.over and not (isinstance(message, DoneEvent) and message.choice not in self._open_choices):
                self._record(message)
                self._messages.append(message)
        self._received.set()

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events in order, up to the last choice's DoneEvent. Raise the error that ended the request."""
        while self._messages or not self.over:
            while not self._messages:
                self._received.clear()
                await self._received.wait()
            message = self._messages.popleft()
            if isinstance(message, Failed):
                raise message.error
            yield message

    async def completions(self) -> list[Completion]:
        """Wait for all choices and return them."""
        done = [event.completion async for event in self.events() if isinstance(event, DoneEvent)]
        return sorted(done, key=lambda completion: completion.choice)

    def _record(self, message: Message) -> None:
        now = time.perf_counter()
        if isinstance(message, Failed):
            self.error, self.ended = message.error, now
        elif isinstance(message, DoneEvent):
            self.finished.append(message.completion)
            self._written[message.choice] = message.completion.stats.committed
            self._open_choices.discard(message.choice)
            self.ended = None if self._open_choices else now
        elif isinstance(message, RoundEvent):
            self._written[message.choice] += message.accepted + 1
        elif self.first_text is None:
            self.first_text = now


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
    if not isinstance(error, ServeError):
        return "engine"
    return error.party or ("stopping" if error.status == 503 else "engine")
