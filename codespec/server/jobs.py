"""Computations in flight: waiting and running jobs, and the request handles that share each.

Identical requests share a job, and a newer request for a document replaces the older one. Prefetches and audits are
jobs without handles. Lives on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from codespec.sequence import Sequence
from codespec.server.handles import Message, Priority, RequestHandle
from codespec.server.prefetch import answers
from codespec.types import CompletionRequest, DoneEvent, Owner, RoundEvent, TextEvent


@dataclass(slots=True, eq=False)
class Job:
    """One computation and the handles that share it.

    After a failed round a job runs again, `alone`. The engine then generates the same text again, and only the part
    after `sent` goes out.
    """

    request: CompletionRequest
    number: int  # order of arrival
    own_priority: Priority = Priority.INTERACTIVE  # its first handle's, or its own for a job without handles
    after_first_ms: float | None = None
    deadline: float | None = None  # seconds of perf_counter
    handles: list[RequestHandle] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)  # all messages sent so far
    first_token: float | None = None  # its time in seconds of perf_counter
    alone: bool = False
    sent: dict[int, int] = field(default_factory=dict)  # characters sent, by choice
    written: dict[int, int] = field(default_factory=dict)  # characters written in this run, by choice
    audited: list[Sequence] = field(default_factory=list)  # finished sequences that this audit decodes again
    rounds_waited: int = 0  # rounds in which other jobs ran and this one did not

    @property
    def priority(self) -> Priority:
        """The most urgent priority among its handles."""
        return min((handle.priority for handle in self.handles), default=self.own_priority)

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be generated, over all choices."""
        if not self.sequences:
            return self.request.n * self.request.max_tokens
        return sum(sequence.remaining for sequence in self.sequences if not sequence.finish_reason)

    @property
    def runnable(self) -> list[int]:
        """The choices that can run in the next round; only the first one until it has prefilled the shared prompt."""
        if not self.sequences or not (self.sequences[0].num_generated or self.sequences[0].finish_reason):
            return [0]
        return [number for number, sequence in enumerate(self.sequences) if not sequence.finish_reason]

    @property
    def is_prefetch(self) -> bool:
        """Whether no client has requested it so far."""
        return self.own_priority == Priority.PREFETCH

    @property
    def finished(self) -> bool:
        """Whether all choices are finished."""
        return all(sequence.finish_reason for sequence in self.sequences)

    def request_at(self, now: float) -> CompletionRequest:
        """Return the request with the time remaining until its deadline."""
        if self.deadline is None:
            return self.request
        return replace(self.request, deadline_ms=(self.deadline - now) * 1000)

    def computes(self, handle: RequestHandle) -> bool:
        """Return whether this job also answers the handle's request.

        A job with a time limit is shared only before it starts.
        """
        if self.is_prefetch:
            return answers(self.request, handle)
        same = (self.request, self.after_first_ms) == (handle.request, handle.after_first_ms)
        return same and not (handle.time_limited and self.sequences)

    def adopt(self, handle: RequestHandle) -> None:
        """Turn a prefetch into the handle's own job, with its deadline if it has one."""
        self.request, self.own_priority = handle.request, handle.priority
        self.after_first_ms, self.deadline = handle.after_first_ms, handle.deadline
        for sequence in self.sequences:
            sequence.deadline = self.deadline

    def read_events(self) -> list[Message]:
        """Return the sequences' events that were not sent before."""
        fresh = []
        for sequence in self.sequences:
            for event in sequence.events:
                unsent = self._unsent(event)
                if unsent is not None:
                    fresh.append(unsent)
            sequence.events.clear()
        self.messages += fresh
        return fresh

    def _unsent(self, event: TextEvent | RoundEvent | DoneEvent) -> Message | None:
        choice = event.choice
        sent, written = self.sent.get(choice, 0), self.written.get(choice, 0)
        if isinstance(event, RoundEvent):
            return event if written >= sent else None
        if isinstance(event, DoneEvent):
            return event
        self.written[choice] = written + len(event.text)
        self.sent[choice] = max(sent, self.written[choice])
        rest = event.text[max(0, sent - written) :]
        return replace(event, text=rest) if rest else None


class Jobs:
    """All jobs; those in `running` have started. Each handle belongs to one job until it is over."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._numbers = count()
        self._job_of: dict[RequestHandle, Job] = {}
        self._newest: dict[tuple[Owner, Priority], RequestHandle] = {}  # the newest handle of each document

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.running, *self.waiting])

    def __contains__(self, handle: RequestHandle) -> bool:
        return handle in self._job_of

    def add(self, handle: RequestHandle) -> Job:
        """Add a handle to a job that computes the same request, or to a new job."""
        job = next((job for job in self if job.computes(handle)), None) or self._new(handle)
        if job.is_prefetch:
            job.adopt(handle)
        job.handles.append(handle)
        self._job_of[handle] = job
        return job

    def add_prefetch(self, request: CompletionRequest) -> None:
        """Add a job for a request that no client has sent yet."""
        self.waiting.append(Job(request, next(self._numbers), Priority.PREFETCH))

    def add_audit(self, audited: list[Sequence]) -> None:
        """Add an audit job, which decodes finished sequences again."""
        self.waiting.append(Job(audited[0].request, next(self._numbers), Priority.AUDIT, audited=audited))

    def audits(self) -> list[Job]:
        """Return the audit jobs."""
        return [job for job in self if job.audited]

    def prefetches(self) -> list[Job]:
        """Return the prefetch jobs."""
        return [job for job in self if job.is_prefetch]

    def supersede(self, handle: RequestHandle) -> list[RequestHandle]:
        """Make a handle its document's newest; return the older ones, which must end. A warm-up ends only warm-ups."""
        owner, priority = handle.owner, handle.priority
        if not owner.document:
            return []
        ended = [Priority.WARM_UP] if priority == Priority.WARM_UP else [Priority.INTERACTIVE, Priority.WARM_UP]
        older = [self._newest.pop((owner, kind), None) for kind in ended]
        self._newest[owner, priority] = handle
        return [one for one in older if one is not None]

    def detach(self, handle: RequestHandle) -> Job | None:
        """Remove a handle; return its job, also removed, if no other handle shares it."""
        job = self._job_of.pop(handle, None)
        key = (handle.owner, handle.priority)
        if self._newest.get(key) is handle:
            del self._newest[key]
        if job is None:
            return None
        job.handles.remove(handle)
        if job.handles:
            return None
        self._remove(job)
        return job

    def end(self, job: Job) -> list[RequestHandle]:
        """Remove a job; return its handles."""
        handles = list(job.handles)
        for handle in handles:
            self.detach(handle)
        if not handles:
            self._remove(job)
        return handles

    def start(self, job: Job, sequences: list[Sequence]) -> None:
        """Move a job from waiting to running."""
        job.sequences, job.written = sequences, {}
        self.waiting.remove(job)
        self.running.append(job)

    def requeue(self, job: Job) -> None:
        """Move a job from running to waiting, to start again."""
        job.sequences, job.first_token = [], None
        self.running.remove(job)
        self.waiting.append(job)

    def _new(self, handle: RequestHandle) -> Job:
        job = Job(handle.request, next(self._numbers), handle.priority, handle.after_first_ms, handle.deadline)
        self.waiting.append(job)
        return job

    def _remove(self, job: Job) -> None:
        (self.running if job in self.running else self.waiting).remove(job)
