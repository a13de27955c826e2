"""One client's share in a computation: what was asked, and the events on their way to whoever asked.

Lives on the event loop; the engine's thread only names it. A client that reads slowly makes nobody wait: what is not
read yet is kept here, and is no more than one completion.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from enum import IntEnum

from codespec.errors import CodespecError
from codespec.server.metrics import Course
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, FinishReason, Owner, Stats


class Priority(IntEnum):
    """Who goes first; a warm-up yields to anybody who waits for a text, and what nobody asked for yet to everybody. An
    audit is wanted by nobody but us.
    """

    INTERACTIVE = 0
    WARM_UP = 1
    AHEAD = 2
    AUDIT = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """What a handler asks of the engine.

    A newer ask of the same `owner`, if that names a document, ends the older; a warm-up ends no text. `after_first_ms`
    is a limit that counts from the first token and ends the text only behind a line break. `notes` is what the client
    is to be told of how its request was read.
    """

    request: CompletionRequest
    priority: Priority = Priority.INTERACTIVE
    after_first_ms: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def owner(self) -> Owner:
        """Who asks, and what is edited; "" where the client does not say."""
        return self.request.owner

    @property
    def key(self) -> tuple[CompletionRequest, float | None]:
        """Equal for asks that one computation can answer."""
        return self.request, self.after_first_ms

    @property
    def limited(self) -> bool:
        """Whether the clock may cut the text."""
        return self.request.deadline_ms is not None or self.after_first_ms is not None


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of an ask that got no text, or no more of it."""

    error: CodespecError


Message = Event | Failed


class Ticket:
    """One ask under way, as its handler sees it."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.course = Course()
        self.arrived = self.course.arrived  # deadlines count from here
        self.over = False  # nothing more comes
        self._left = set(range(ask.request.n))  # choices that are not finished
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()

    def push(self, messages: Iterable[Message]) -> None:
        """Takes what the engine's thread sent; what comes behind an end is dropped."""
        for message in messages:
            if self.over or (isinstance(message, DoneEvent) and message.choice not in self._left):
                continue
            self._messages.append(message)
            if isinstance(message, DoneEvent):
                self._left.discard(message.choice)
            self.over = isinstance(message, Failed) or not self._left
            self.course.note(message.error if isinstance(message, Failed) else message, last=self.over)
        self._arrived.set()

    async def events(self) -> AsyncIterator[Event]:
        """All events in order, to the last choice's DoneEvent. Raises the error that ended the ask."""
        while self._messages or not self.over:
            while not self._messages:
                self._arrived.clear()
                await self._arrived.wait()
            message = self._messages.popleft()
            if isinstance(message, Failed):
                raise message.error
            yield message

    async def completions(self) -> list[Completion]:
        """All choices, once they are finished."""
        done = [event.completion async for event in self.events() if isinstance(event, DoneEvent)]
        return sorted(done, key=lambda completion: completion.choice)


def nothing(request: CompletionRequest, reason: FinishReason) -> list[DoneEvent]:
    """The end of a request that the engine never saw, or whose text nobody wants: no text."""
    return [DoneEvent(n, Completion("", (), reason, Stats(), n)) for n in range(request.n)]
