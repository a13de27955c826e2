"""Computations in flight: who waits, who has begun, and who shares one.

Identical asks share a job; a newer ask of a document takes the older one's place. What is computed before it is asked
for is a job without tickets, and so is an audit. Knows sharing; knows no engine and no network, and not whose turn it
is. Lives on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from codespec.sequence import Sequence
from codespec.server.ahead import is_answered_by
from codespec.server.tickets import Ask, Message, Priority, Ticket
from codespec.types import CompletionRequest, DoneEvent, Owner, RoundEvent, TextEvent


@dataclass(slots=True, eq=False)
class Job:
    """One computation and the tickets that share it. `number` is its place in the order of arrival.

    After a failed round a job runs again, `alone`; the engine writes the same text again, and of that only what was not
    `told` yet goes out. `told` and `written` are characters by choice. An audit `repeats` finished sequences. `waited`
    are the rounds in which others took part and it did not.
    """

    ask: Ask
    number: int
    deadline: float | None  # seconds of perf_counter
    tickets: list[Ticket] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    log: list[Message] = field(default_factory=list)
    first_token: float | None = None
    alone: bool = False
    told: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    repeats: list[Sequence] = field(default_factory=list)
    waited: int = 0

    @property
    def priority(self) -> Priority:
        """The most urgent of its tickets'."""
        return min((ticket.ask.priority for ticket in self.tickets), default=self.ask.priority)

    @property
    def remaining(self) -> int:
        """Tokens that may still be written, of all choices together."""
        if not self.sequences:
            return self.ask.request.n * self.ask.request.max_tokens
        return sum(sequence.remaining for sequence in self.sequences if not sequence.finish_reason)

    @property
    def able(self) -> list[int]:
        """The choices that can take part in a round: while it reads the prompt for all of them, the first alone."""
        if not self.sequences or not (self.sequences[0].num_generated or self.sequences[0].finish_reason):
            return [0]
        return [number for number, sequence in enumerate(self.sequences) if not sequence.finish_reason]

    @property
    def unasked(self) -> bool:
        """Whether it is computed ahead, and nobody has asked for it so far."""
        return self.ask.priority == Priority.AHEAD

    @property
    def finished(self) -> bool:
        """Whether all choices are."""
        return all(sequence.finish_reason for sequence in self.sequences)

    def request_at(self, now: float) -> CompletionRequest:
        """The request with the time that is left of its deadline."""
        if self.deadline is None:
            return self.ask.request
        return replace(self.ask.request, deadline_ms=(self.deadline - now) * 1000)

    def adopt(self, ticket: Ticket) -> None:
        """What was computed ahead is asked for, perhaps with a deadline."""
        self.ask, limit = ticket.ask, ticket.ask.request.deadline_ms
        self.deadline = None if limit is None else ticket.arrived + limit / 1000
        for sequence in self.sequences:
            sequence.deadline = self.deadline

    def read_events(self) -> list[Message]:
        """What the sequences have to tell that was not told before."""
        found = []
        for sequence in self.sequences:
            for event in sequence.events:
                fresh = self._fresh(event)
                if fresh is not None:
                    found.append(fresh)
            sequence.events.clear()
        self.log += found
        return found

    def _fresh(self, event: TextEvent | RoundEvent | DoneEvent) -> Message | None:
        choice = event.choice
        told, written = self.told.get(choice, 0), self.written.get(choice, 0)
        if isinstance(event, RoundEvent):
            return event if written >= told else None
        if isinstance(event, DoneEvent):
            return event
        self.written[choice] = written + len(event.text)
        self.told[choice] = max(told, self.written[choice])
        rest = event.text[max(0, told - written) :]
        return replace(event, text=rest) if rest else None


class Jobs:
    """All jobs, `running` once they have begun; each ticket is in one of them until it is over."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self._numbers = count()
        self._job_of: dict[Ticket, Job] = {}
        self._documents: dict[tuple[Owner, Priority], Ticket] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.running, *self.waiting])

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._job_of

    def add(self, ticket: Ticket) -> Job:
        """Puts a ticket into a job, a new one or one that computes the same."""
        job = self._same(ticket.ask) or self._new(ticket)
        if job.unasked:
            job.adopt(ticket)
        job.tickets.append(ticket)
        self._job_of[ticket] = job
        return job

    def add_ahead(self, ask: Ask) -> None:
        """Adds what nobody asked for yet."""
        self.waiting.append(Job(ask, next(self._numbers), None))

    def add_audit(self, repeats: list[Sequence]) -> None:
        """Adds what is decoded again."""
        ask = Ask(repeats[0].request, Priority.AUDIT)
        self.waiting.append(Job(ask, next(self._numbers), None, repeats=repeats))

    def audits(self) -> list[Job]:
        """The jobs that decode something again."""
        return [job for job in self if job.repeats]

    def unasked(self) -> list[Job]:
        """The jobs that nobody asked for."""
        return [job for job in self if job.unasked]

    def supersede(self, ticket: Ticket) -> list[Ticket]:
        """Makes a ticket its document's newest; the tickets that end with that. A warm-up ends warm-ups only."""
        owner, priority = ticket.ask.owner, ticket.ask.priority
        if not owner.document:
            return []
        ended = [Priority.WARM_UP] if priority == Priority.WARM_UP else [Priority.INTERACTIVE, Priority.WARM_UP]
        older = [self._documents.pop((owner, kind), None) for kind in ended]
        self._documents[owner, priority] = ticket
        return [one for one in older if one is not None]

    def leave(self, ticket: Ticket) -> Job | None:
        """Takes a ticket out; its job, removed, if nobody else wants it."""
        job = self._job_of.pop(ticket, None)
        place = (ticket.ask.owner, ticket.ask.priority)
        if self._documents.get(place) is ticket:
            del self._documents[place]
        if job is None:
            return None
        job.tickets.remove(ticket)
        if job.tickets:
            return None
        self._remove(job)
        return job

    def end(self, job: Job) -> list[Ticket]:
        """Removes a job; the tickets it had."""
        tickets = list(job.tickets)
        for ticket in tickets:
            self.leave(ticket)
        if not tickets:
            self._remove(job)
        return tickets

    def start(self, job: Job, sequences: list[Sequence]) -> None:
        """Moves a job from waiting to running."""
        job.sequences, job.written = sequences, {}
        self.waiting.remove(job)
        self.running.append(job)

    def put_back(self, job: Job) -> None:
        """Moves a job from running to waiting: it begins anew."""
        job.sequences, job.first_token = [], None
        self.running.remove(job)
        self.waiting.append(job)

    def _same(self, ask: Ask) -> Job | None:
        """A job that answers this ask too; one that the clock may cut only before it began."""
        for job in self:
            if job.unasked:
                if is_answered_by(ask, job.ask.request):
                    return job
            elif job.ask.key == ask.key and not (ask.limited and job.sequences):
                return job
        return None

    def _new(self, ticket: Ticket) -> Job:
        limit = ticket.ask.request.deadline_ms
        job = Job(ticket.ask, next(self._numbers), None if limit is None else ticket.arrived + limit / 1000)
        self.waiting.append(job)
        return job

    def _remove(self, job: Job) -> None:
        (self.running if job in self.running else self.waiting).remove(job)
