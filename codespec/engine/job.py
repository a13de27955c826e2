"""The two forms of a request in the engine: a handle for its client, and a job that generates the text.

Equal requests share a job. A handle is used on the event loop and a job on the engine's thread; only `Job.handles` and
`RequestHandle.job` connect handles and jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from codespec_grammars import ContextTracker, find_place

from codespec.api.types import (
    Completion,
    CompletionRequest,
    DoneEvent,
    Event,
    FinishReason,
    Owner,
    RoundEvent,
    Stats,
    TextEvent,
)
from codespec.errors import CodespecError
from codespec.sequence import Sequence
from codespec.text.edit_formats import AnswerReader, Window

Message = Event | CodespecError  # an error is the last message, possibly after a part of the text


class Priority(IntEnum):
    """The priority of a request: completions run first, then edits, warm-ups and finally prefetches."""

    INTERACTIVE = 0
    EDIT = 1
    WARM_UP = 2
    PREFETCH = 3


class RequestHandle:
    """One client's request and its unread events, which are buffered so that a slow client does not delay others."""

    def __init__(
        self,
        request: CompletionRequest,
        priority: Priority | None = None,
        notes: Iterable[str] = (),
        batch: object = None,
        window: Window | None = None,
    ) -> None:
        self.window = window  # generation ends once the text contains the whole rewritten window
        self.batch = self if batch is None else batch  # shared by the handles of one HTTP request
        self.request = request
        usual = Priority.INTERACTIVE if request.max_tokens else Priority.WARM_UP
        self.priority = usual if priority is None else priority
        self.notes = tuple(notes)  # tell the client how the daemon interpreted the request
        self.arrived = time.perf_counter()
        self.session = ""  # the client's x-session-id: requests of one document share it
        self.job: Job | None = None  # set and used on the engine's thread
        self.left = False  # whether its client has left, or was refused
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
        """The client and the edited document, whose name is "" if the client did not send one."""
        return self.request.owner

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def prompt_tokens(self) -> int:
        return self.finished[0].stats.prompt_tokens if self.finished else 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens generated so far, over all choices."""
        return sum(self._written.values())

    @property
    def waits(self) -> bool:
        """Whether the engine has not yet started this request."""
        return not self.over and self.first_text is None and not (self.job and self.job.sequences)

    def supersedes(self, older: RequestHandle) -> bool:
        """Return whether this request replaces an older request for the same document.

        A warm-up does not replace a request for text. Edits and completions of a document do not replace each other.
        """
        if not self.owner.document or self.owner != older.owner or self.batch is older.batch:
            return False
        kinds = {self.priority == Priority.EDIT, older.priority == Priority.EDIT}
        return len(kinds) == 1 and self.priority <= older.priority

    def push(self, messages: Iterable[Message]) -> None:
        """Add messages from the engine's thread, but drop messages that arrive after the request has ended."""
        for message in messages:
            if not self.over and not (isinstance(message, DoneEvent) and message.choice not in self._open_choices):
                self._record(message)
                self._messages.append(message)
        self._received.set()

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events in order, up to the last choice's DoneEvent. Raises the error that ended the request."""
        while self._messages or not self.over:
            while not self._messages:
                self._received.clear()
                await self._received.wait()
            message = self._messages.popleft()
            if isinstance(message, CodespecError):
                raise message
            yield message

    async def completions(self) -> list[Completion]:
        done = [event.completion async for event in self.events() if isinstance(event, DoneEvent)]
        return sorted(done, key=lambda completion: completion.choice)

    def _record(self, message: Message) -> None:
        now = time.perf_counter()
        if isinstance(message, CodespecError):
            self.error, self.ended = message, now
        elif isinstance(message, DoneEvent):
            self.finished.append(message.completion)
            self._written[message.choice] = message.completion.stats.committed
            self._open_choices.discard(message.choice)
            self.ended = None if self._open_choices else now
        elif isinstance(message, RoundEvent):
            self._written[message.choice] += message.accepted + 1
        elif self.first_text is None:
            self.first_text = now


@dataclass(slots=True, eq=False)
class Job:
    """A request in the engine's queue; a started job has one sequence per choice."""

    request: CompletionRequest
    priority: Priority = Priority.INTERACTIVE
    arrived: float = 0.0  # earliest time of the start, which is in the future for a planned prefetch
    handles: list[RequestHandle] = field(default_factory=list)  # of the clients that share this job
    listening: bool = True  # whether a caller reads the events
    answer: AnswerReader | None = None  # reads a text that rewrites a window
    number: int = 0  # order of arrival
    sequences: list[Sequence] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # all events that `read_events` has returned
    ended: FinishReason | None = None  # set if it was ended before it started
    first_token: float | None = None
    alone: bool = False  # whether it runs again after a failed round; `read_events` omits what was returned before
    accepted: str = ""  # the end of a prefetch's prefix, a text that the user is assumed to accept
    rounds_waited: int = 0  # rounds in which other jobs ran and this one did not
    _sent: dict[int, int] = field(default_factory=dict)  # characters returned, by choice
    _written: dict[int, int] = field(default_factory=dict)  # characters written in this run, by choice

    @property
    def deadline(self) -> float | None:
        """The time at which generation is stopped, or None if the request has no time limit."""
        limit = self.request.deadline_ms
        return None if limit is None else self.arrived + limit / 1000

    @property
    def finished(self) -> bool:
        """Whether all choices have ended."""
        return bool(self.ended or self.sequences) and all(sequence.finish_reason for sequence in self.sequences)

    @property
    def answered(self) -> bool:
        """Whether the text contains the whole rewritten window."""
        return self.answer is not None and self.answer.is_over

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be generated, over all choices."""
        if not self.sequences:
            return self.request.n * self.request.max_tokens
        return sum(sequence.remaining for sequence in self.sequences if not sequence.finish_reason)

    @property
    def runnable(self) -> list[int]:
        """Numbers of the choices that can run in the next round: only the first until the prompt is prefilled."""
        if not self.sequences or not (self.sequences[0].num_generated or self.sequences[0].finish_reason):
            return [0]
        return [number for number, sequence in enumerate(self.sequences) if not sequence.finish_reason]

    def predict_cursor(self) -> None:
        """Predict the cursor that the language server will send after a prefetch's accepted text."""
        request, text, self.accepted = self.request, self.accepted, ""
        if text and request.cursor is not None:
            prefix, suffix = request.prefix.removesuffix(text).encode(), request.suffix.encode()
            place = find_place(request.language, request.path, prefix, suffix)
            tracker = ContextTracker(place.language, place.prefix, place.suffix, sent=request.cursor)
            tracker.advance(text.encode())
            self.request = replace(request, cursor=tracker.context(parse=False))

    def restart(self) -> None:
        """Reset the job, so that it starts again and runs without other jobs."""
        self.sequences, self.first_token, self.alone = [], None, True
        self._written.clear()

    def computes(self, handle: RequestHandle) -> bool:
        """Return whether this job also answers a request, which can have a time limit only before the job starts."""
        request, window = handle.request, self.answer.window if self.answer is not None else None
        if self.priority == Priority.PREFETCH:
            return answers(self.request, request)
        limited = request.deadline_ms is not None or request.after_first_ms is not None
        return (self.request, window) == (request, handle.window) and not (limited and self.sequences)

    def join(self, handle: RequestHandle) -> None:
        """Add a client's handle to this job. A prefetch becomes the client's own request."""
        if self.priority == Priority.PREFETCH:
            self.request, self.priority, self.arrived = handle.request, handle.priority, handle.arrived
        self.priority = min(self.priority, handle.priority)
        self.handles.append(handle)
        handle.job = self

    def leave(self, handle: RequestHandle) -> bool:
        """Remove a client's handle, and return whether it was the job's last handle."""
        if handle not in self.handles:
            return False
        self.handles.remove(handle)
        self.priority = min((other.priority for other in self.handles), default=self.priority)
        return not self.handles

    def read_events(self) -> list[Event]:
        """Return the events that have occurred since the last call."""
        fresh: list[Event] = empty_completions(self.request, self.ended) if self.ended else []
        for sequence in self.sequences:
            fresh += [unsent for event in sequence.events if (unsent := self._unsent(event)) is not None]
            sequence.events.clear()
        if self.answer is not None:
            self.answer.feed("".join(event.text for event in fresh if isinstance(event, TextEvent)))
        self.events += fresh
        return fresh

    def is_overdue(self, now: float) -> bool:
        """Return whether one of the request's time limits has passed."""
        if self.deadline is not None and now >= self.deadline:
            return True
        limit = self.request.after_first_ms
        if limit is None:
            return False
        if self.first_token is None and any(sequence.num_generated for sequence in self.sequences):
            self.first_token = now
        late = self.first_token is not None and now >= self.first_token + limit / 1000
        return late and all(b"\n" in sequence.generated[len(sequence.held) :] for sequence in self.sequences)

    def _unsent(self, event: Event) -> Event | None:
        """Return the part of an event that was not returned before this job was restarted."""
        if isinstance(event, DoneEvent):
            return event
        sent, written = self._sent.get(event.choice, 0), self._written.get(event.choice, 0)
        if isinstance(event, RoundEvent):
            return event if written >= sent else None
        self._written[event.choice] = written + len(event.text)
        self._sent[event.choice] = max(sent, self._written[event.choice])
        rest = event.text[max(0, sent - written) :]
        return replace(event, text=rest) if rest else None


def join(handle: RequestHandle, jobs: Iterable[Job]) -> Job:
    """Add a handle to a job that answers the handle's request, new if necessary, and return the job."""
    job = next((job for job in jobs if job.computes(handle)), None)
    if job is None:
        answer = AnswerReader(handle.window) if handle.window is not None else None
        job = Job(handle.request, handle.priority, handle.arrived, answer=answer)
    job.join(handle)
    return job


def answers(prefetched: CompletionRequest, request: CompletionRequest) -> bool:
    """Return whether the text of a prefetched request, which has no time limit, also answers `request`.

    Both requests must be equal except for the time limit, the client's prediction, and the start of a long prefix, of
    which a client may send only the last part.
    """
    moved = request.prefix_offset - prefetched.prefix_offset
    if request.after_first_ms is not None or moved < 0 or prefetched.prefix[moved:] != request.prefix:
        return False
    whole = replace(request, prefix=prefetched.prefix, prefix_offset=prefetched.prefix_offset, deadline_ms=None)
    return prefetched == replace(whole, prediction="")


def follow_up(request: CompletionRequest, messages: Collection[Message], arrived: float = 0.0) -> Job | None:
    """Return a job for the request that follows if the user accepts this text; None for several choices or no text."""
    if not request.document or request.n != 1:
        return None
    reasons = [message.completion.finish_reason for message in messages if isinstance(message, DoneEvent)]
    text = "".join(message.text for message in messages if isinstance(message, TextEvent))
    if reasons not in (["stop"], ["length"]) or not text.strip():
        return None
    upcoming = replace(request, prefix=request.prefix + text, prediction="", deadline_ms=None)
    return Job(upcoming, Priority.PREFETCH, arrived, accepted=text)


def empty_completions(request: CompletionRequest, reason: FinishReason) -> list[Event]:
    """Return DoneEvents without text for a request that never ran or was superseded."""
    return [DoneEvent(n, Completion("", (), reason, Stats(), n)) for n in range(request.n)]
