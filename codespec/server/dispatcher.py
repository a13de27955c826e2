"""Requests in progress: a handle for each client on the event loop, and the dispatcher on the engine's thread.

The engine's thread only passes handles on. A slow client does not delay others, because its handle buffers its unread
events, at most one completion.

The dispatcher runs the engine one round at a time. Identical requests share a job, and a newer request for a document
replaces the older one. A prefetch is a job without a client: it continues a finished text as if the editor had accepted
it. If a round fails, its jobs run again one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.api.types import Completion, CompletionRequest, DoneEvent, Event, Owner, RoundEvent, TextEvent
from codespec.engine.queue import Job, Priority, empty_completions
from codespec.errors import CodespecError, RequestError, ServeError, TokenizerError
from codespec.sequence import Sequence
from codespec.server.logs import log_failure
from codespec.text.edit_formats import AnswerReader, Window

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

MAX_AGE = 60.0  # seconds
MAX_DOCUMENTS = 32
NOTE = "prefetched: computed before it was requested"


Message = Event | CodespecError  # an error is the last message, possibly after a part of the text


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
        usual = Priority.INTERACTIVE if request.max_tokens else Priority.WARM_UP
        self.priority = usual if priority is None else priority
        self.notes = tuple(notes)
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
        """The client and the document being edited; "" if the client did not name one."""
        return self.request.owner

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def prompt_tokens(self) -> int:
        return self.finished[0].stats.prompt_tokens if self.finished else 0

    @property
    def num_tokens(self) -> int:
        """Tokens written so far, over all choices."""
        return sum(self._written.values())

    @property
    def waits(self) -> bool:
        """Whether the engine has not started on it."""
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


Delivery = tuple[RequestHandle, Collection[Message]]


class PrefetchCache:
    """Prefetched completions, at most one per document: each with its messages and the time of its end."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Owner, tuple[CompletionRequest, Collection[Message], float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: CompletionRequest, messages: Collection[Message], now: float) -> None:
        for message in messages:
            if isinstance(message, DoneEvent):
                message.completion.stats.notes.append(NOTE)
        self._kept.pop(request.owner, None)
        self._kept[request.owner] = request, messages, now
        if len(self._kept) > MAX_DOCUMENTS:
            self._kept.popitem(last=False)

    def take(self, handle: RequestHandle, now: float) -> Collection[Message]:
        """Return the messages that answer a request, or []. Any newer request for text drops them."""
        if handle.priority != Priority.INTERACTIVE:
            return []
        request, messages, finished = self._kept.pop(handle.owner, (None, [], 0.0))
        if request is None or now > finished + MAX_AGE or not answers(request, handle.request):
            return []
        return messages


class Dispatcher:
    """Puts requests into the engine's queue and runs its rounds; `outbox` collects the messages for their handles.

    With `prefetch`, it continues each document's text if no request arrives for `patience` seconds. A request that
    arrives during a round waits for its end.
    """

    def __init__(self, engine: Engine, prefetch: bool = False, patience: float = 0.0) -> None:
        self.engine = engine
        self.queue = engine.queue
        self.prefetch = prefetch
        self.patience = patience
        self.prefetched = PrefetchCache()
        self.outbox: list[Delivery] = []

    @property
    def idle_for(self) -> float | None:
        """Seconds until there is work without a new request, or None if none is planned."""
        return self.queue.idle_for(time.perf_counter())

    @property
    def handles(self) -> list[RequestHandle]:
        return [handle for job in self.queue.jobs for handle in job.handles]

    def admit(self, handle: RequestHandle) -> None:
        """Accept a request. End an older one for its document, and cancel prefetches that don't serve it.

        An edit cancels no prefetch: the completion that it prepares is still likely.
        """
        if handle.left:
            return
        superseded = [older for older in self.handles if handle.supersedes(older)]
        computed = self.prefetched.take(handle, time.perf_counter())
        if computed:
            self._send([handle], computed)
        else:
            job = join(handle, self.queue.jobs)
            if job not in self.queue.jobs:
                self.queue.add(job)
            self._send([handle], job.events)
        for older in superseded:
            self.abort(older)
            self._send([older], empty_completions(older.request, "cancelled"))
        if handle.priority != Priority.EDIT:
            for job in [job for job in self.queue.jobs if job.priority == Priority.PREFETCH]:
                self.queue.end(job)
        if computed:
            self._plan_prefetch(handle.request, computed)

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request that its client has left or superseded; end its job if no other request shares it."""
        if leave(handle) and handle.job is not None:
            self.queue.end(handle.job)

    def round(self) -> None:
        """Run one engine step for the choices that the queue chooses, without the requests that clients have left."""
        for handle in self.handles:
            if handle.left:
                self.abort(handle)
        chosen = self.queue.next_round(time.perf_counter(), self._start)
        if chosen:
            self._step(chosen)
        self.queue.expire(time.perf_counter())
        for job in list(self.queue.jobs):
            self._collect(job)

    def refuse_all(self, error: CodespecError) -> None:
        """End all requests with an error, without the engine, which may be broken."""
        self._send(self.handles, [error])
        self.queue.jobs.clear()

    def _step(self, chosen: list[Sequence]) -> None:
        try:
            self.engine.step(chosen)
        except Exception as error:  # engine boundary: one request's fault must not end the others
            failed = [job for job in self.queue.jobs if not set(chosen).isdisjoint(job.sequences)]
            for job in failed:
                self.queue.restart(job)
            if len(failed) == 1:
                self._fail(failed[0], error)

    def _start(self, job: Job) -> None:
        try:
            self.engine.start(job)
        except TokenizerError as error:
            self._end(job, [RequestError(str(error), "prefix")])
        except CodespecError as error:
            self._end(job, [error])
        except Exception as error:  # engine boundary: only the request that can't be submitted ends
            self._fail(job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        log_failure("a request failed in the engine", error)
        kind = type(error).__name__  # the exception's message may contain source text
        sentence = f"The engine failed on this request ({kind}): other requests are not affected."
        self._end(job, [ServeError(sentence, 500)])

    def _end(self, job: Job, messages: Collection[Message]) -> None:
        self._send(job.handles, messages)
        job.handles = []
        self.queue.end(job)

    def _collect(self, job: Job) -> None:
        events = job.read_events()
        if job.answered and not job.finished:
            self.queue.stop(job, "stop")
            events += job.read_events()
        if not job.finished:
            self._send(job.handles, events)
            return
        self._end(job, events)
        if job.priority == Priority.PREFETCH:
            self.prefetched.put(job.request, job.events, time.perf_counter())
        elif job.priority == Priority.INTERACTIVE and job.request.after_first_ms is None:
            self._plan_prefetch(job.request, job.events)

    def _plan_prefetch(self, request: CompletionRequest, messages: Collection[Message]) -> None:
        """Plan to continue a finished text as if the user had accepted it."""
        upcoming = follow_up(request, messages) if self.prefetch else None
        if upcoming is not None:
            self.queue.add(Job(upcoming, Priority.PREFETCH, time.perf_counter() + self.patience))

    def _send(self, handles: Iterable[RequestHandle], messages: Collection[Message]) -> None:
        if messages:
            self.outbox += [(handle, list(messages)) for handle in handles]


def join(handle: RequestHandle, jobs: Iterable[Job]) -> Job:
    """Let a handle share the job among these that computes its request, or a new one. Return the job."""
    job = next((job for job in jobs if computes(job, handle)), None)
    if job is None:
        answer = AnswerReader(handle.window) if handle.window is not None else None
        job = Job(handle.request, handle.priority, handle.arrived, answer=answer)
    elif job.priority == Priority.PREFETCH:
        job.request, job.priority, job.arrived = handle.request, handle.priority, handle.arrived
    job.priority = min(job.priority, handle.priority)
    job.handles.append(handle)
    handle.job = job
    return job


def leave(handle: RequestHandle) -> bool:
    """Take a handle from its job, if it shares one. Return whether it was the last."""
    job = handle.job
    if job is None or handle not in job.handles:
        return False
    job.handles.remove(handle)
    job.priority = min((other.priority for other in job.handles), default=job.priority)
    return not job.handles


def computes(job: Job, handle: RequestHandle) -> bool:
    """Return whether a job also answers a handle's request. One with a time limit is shared only before it starts."""
    request, window = handle.request, job.answer.window if job.answer is not None else None
    if job.priority == Priority.PREFETCH:
        return answers(job.request, request)
    limited = request.deadline_ms is not None or request.after_first_ms is not None
    return (job.request, window) == (request, handle.window) and not (limited and job.sequences)


def answers(prefetched: CompletionRequest, request: CompletionRequest) -> bool:
    """Return whether a prefetched request, which has no time limit, answers this one.

    They must be equal except for that limit, the client's prediction, and the start of the prefix if the client sends
    only the last part of a long one.
    """
    moved = request.prefix_offset - prefetched.prefix_offset
    if request.after_first_ms is not None or moved < 0 or prefetched.prefix[moved:] != request.prefix:
        return False
    whole = replace(request, prefix=prefetched.prefix, prefix_offset=prefetched.prefix_offset, deadline_ms=None)
    return prefetched == replace(whole, prediction="")


def follow_up(request: CompletionRequest, messages: Collection[Message]) -> CompletionRequest | None:
    """Return the request that the editor will send if this text, if any, is accepted; None for several choices."""
    if not request.document or request.n != 1:
        return None
    reasons = [message.completion.finish_reason for message in messages if isinstance(message, DoneEvent)]
    text = "".join(message.text for message in messages if isinstance(message, TextEvent))
    if reasons not in (["stop"], ["length"]) or not text.strip():
        return None
    return replace(request, prefix=request.prefix + text, prediction="", deadline_ms=None)
