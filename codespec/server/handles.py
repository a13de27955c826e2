"""Request handles: a request under way, as its HTTP handler sees it, and the events on their way to its client.

Lives on the event loop; the engine's thread only passes it on. A client that reads slowly delays nobody: its handle
keeps what is not read yet, which is never more than one completion.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from enum import IntEnum

from codespec.errors import CodespecError
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, FinishReason, Owner, Stats, TextEvent


class Priority(IntEnum):
    """Who goes first. A warm-up yields to everyone who waits for text, a prefetch to every request, and an audit, which
    only the daemon itself wants, to all of them.
    """

    INTERACTIVE = 0
    WARM_UP = 1
    PREFETCH = 2
    AUDIT = 3


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a request that got no text, or no more of it."""

    error: CodespecError


Message = Event | Failed


class RequestHandle:
    """One client's request: what to compute, how urgent it is, and what has become of it so far.

    A newer handle of the same `owner` ends the older one if the owner names a document; a warm-up ends no text.
    `after_first_ms` is a time limit that counts from the first token and cuts the text only after a line break. `notes`
    tell the client how its request was read. Times are seconds of perf_counter; deadlines count from `arrived`.
    """

    def __init__(
        self,
        request: CompletionRequest,
        priority: Priority = Priority.INTERACTIVE,
        after_first_ms: float | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self.request = request
        self.priority = priority
        self.after_first_ms = after_first_ms
        self.notes = tuple(notes)
        self.arrived = time.perf_counter()
        self.first_text: float | None = None
        self.ended: float | None = None  # when the last message came
        self.finished: list[Completion] = []  # the choices that are done
        self.error: CodespecError | None = None
        self._open_choices = set(range(request.n))
        self._messages: deque[Message] = deque()
        self._received = asyncio.Event()

    @property
    def owner(self) -> Owner:
        """Who sent it, and which document is edited; "" where the client does not say."""
        return self.request.owner

    @property
    def deadline(self) -> float | None:
        """When the request's time is over, in seconds of perf_counter."""
        limit = self.request.deadline_ms
        return None if limit is None else self.arrived + limit / 1000

    @property
    def time_limited(self) -> bool:
        """Whether the clock may cut its text."""
        return self.request.deadline_ms is not None or self.after_first_ms is not None

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.ended is not None

    def push(self, messages: Iterable[Message]) -> None:
        """Takes what the engine's thread sent; drops what comes after an end."""
        for message in messages:
            if not self.over and not (isinstance(message, DoneEvent) and message.choice not in self._open_choices):
                self._record(message)
                self._messages.append(message)
        self._received.set()

    async def events(self) -> AsyncIterator[Event]:
        """All events in order, up to the last choice's DoneEvent. Raises the error that ended the request."""
        while self._messages or not self.over:
            while not self._messages:
                self._received.clear()
                await self._received.wait()
            message = self._messages.popleft()
            if isinstance(message, Failed):
                raise message.error
            yield message

    async def completions(self) -> list[Completion]:
        """All choices, once they are done."""
        done = [event.completion async for event in self.events() if isinstance(event, DoneEvent)]
        return sorted(done, key=lambda completion: completion.choice)

    def _record(self, message: Message) -> None:
        now = time.perf_counter()
        if isinstance(message, Failed):
            self.error, self.ended = message.error, now
        elif isinstance(message, DoneEvent):
            self.finished.append(message.completion)
            self._open_choices.discard(message.choice)
            self.ended = None if self._open_choices else now
        elif isinstance(message, TextEvent) and self.first_text is None:
            self.first_text = now


def empty_completions(request: CompletionRequest, reason: FinishReason) -> list[DoneEvent]:
    """The end of a request without text: the engine never saw it, or nobody wants it any more."""
    return [DoneEvent(n, Completion("", (), reason, Stats(), n)) for n in range(request.n)]
