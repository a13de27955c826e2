"""Request handles: a request in progress as its HTTP handler sees it, and the events for its client.

Handles live on the event loop; the engine's thread only passes them on. A slow client delays no other: its handle
buffers the unread events, at most one completion.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from codespec.contract.types import Completion, CompletionRequest, DoneEvent, Event, Owner, RoundEvent
from codespec.engine.queue import Job, Priority
from codespec.errors import CodespecError


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a request that failed before or during its text."""

    error: CodespecError


Message = Event | Failed


class RequestHandle:
    """One client's request: its parameters, priority and progress.

    `after_first_ms` is a time limit that starts at the first token and cuts the text only after a line break. `notes`
    explain to the client how its request was read. Limits in milliseconds become seconds of perf_counter here; a
    deadline counts from `arrived`.
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
        self.notes = tuple(notes)
        self.arrived = time.perf_counter()
        self.deadline = None if request.deadline_ms is None else self.arrived + request.deadline_ms / 1000
        self.after_first = None if after_first_ms is None else after_first_ms / 1000
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
        """The client and the document being edited; "" for parts that the client does not send."""
        return self.request.owner

    @property
    def time_limited(self) -> bool:
        """Whether a time limit may cut the text."""
        return self.deadline is not None or self.after_first is not None

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
        """Return whether it ends an older request for its document. A warm-up ends no request for text."""
        return bool(self.owner.document) and self.owner == older.owner and self.priority <= older.priority

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
