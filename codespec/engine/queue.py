"""The queue of one engine: every request from its arrival to its end, and the choices that run in the next round.

If more choices can run than there are slots, the requests with the fewest tokens left go first, so that a short request
does not wait for a long one (shortest remaining time first, Schrage 1968). Clients (scopes: a key, a user) take turns
in round-robin order, one choice each and then a second choice each, and so do the documents of a client, so that
sending more requests, or using more documents, does not yield more slots (fair queueing, Nagle 1985). Neither rule lets
a request starve:

- The oldest request owns a quarter of the slots; with fewer than four slots, it goes first for 16 rounds in every 64.
  If each of its n choices takes r rounds, it ends within r * ceil(n / (slots // 4)) rounds, or with fewer than four
  slots within 4 * r * ceil(n / slots) + 64, regardless of later arrivals. Then the next request is the oldest.
- The request with the fewest tokens left begins in the next round, or with fewer than four slots after at most 16.
- An edit lets completions go first, and a warm-up all requests for text, but for no more than 256 rounds (aging).

Prefetches run only if there is no other work. The prompts of a round share its rows by the same rule: the
shortest first, a quarter for the oldest, and each client an equal part of the rest for its shortest.

Other threads only `put` functions, which the engine's thread takes between two rounds; nothing else of a queue is
theirs. Times are seconds of `time.perf_counter`.
"""

from __future__ import annotations

import collections.abc
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count
from typing import Any

from codespec.api.types import (
    Completion,
    CompletionRequest,
    DoneEvent,
    Event,
    FinishReason,
    RoundEvent,
    Stats,
    TextEvent,
)
from codespec.errors import CodespecError, Fault, ServeError
from codespec.sequence import Sequence
from codespec.text.edit_formats import AnswerReader

OLDEST_SHARE = 4  # the oldest request owns one slot in four, or one quantum in four, and one prompt row in four
QUANTUM = 16  # rounds
AGING = 256  # rounds that an edit or a warm-up waits before it counts as a completion


class Priority(IntEnum):
    """The order in which requests are served.

    An edit yields to completions, a warm-up to all requests for text, and a prefetch to all client requests.
    """

    INTERACTIVE = 0
    EDIT = 1
    WARM_UP = 2
    PREFETCH = 3


@dataclass(slots=True, eq=False)
class Job:
    """A request in the queue. It has `sequences`, one per choice, once it has started.

    It starts after `arrived`, which is in the future for a planned prefetch, and the request's time limits become times
    here. After a failed round a job runs again, `alone`; the engine then generates the same text, and `read_events`
    returns only the part that it has not returned before. The daemon keeps the handles of the clients that share the
    job in `handles`.
    """

    request: CompletionRequest
    priority: Priority = Priority.INTERACTIVE
    arrived: float = 0.0
    handles: list[Any] = field(default_factory=list)
    listening: bool = True  # whether a caller reads the events
    answer: AnswerReader | None = None  # reads a text that rewrites a window
    number: int = 0  # order of arrival
    sequences: list[Sequence] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # all events that `read_events` has returned
    ended: FinishReason | None = None  # set if it was ended before it started
    first_token: float | None = None
    alone: bool = False
    rounds_waited: int = 0  # rounds in which other jobs ran and this one did not
    _sent: dict[int, int] = field(default_factory=dict)  # characters returned, by choice
    _written: dict[int, int] = field(default_factory=dict)  # characters written in this run, by choice

    @property
    def deadline(self) -> float | None:
        """The time at which the text is final; None if there is none."""
        limit = self.request.deadline_ms
        return None if limit is None else self.arrived + limit / 1000

    @property
    def finished(self) -> bool:
        """Whether all choices have ended."""
        return bool(self.ended or self.sequences) and all(sequence.finish_reason for sequence in self.sequences)

    @property
    def answered(self) -> bool:
        """Whether the text has rewritten its window."""
        return self.answer is not None and self.answer.is_over

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

    def restart(self) -> None:
        """Return to the state before the start, to run alone."""
        self.sequences, self.first_token, self.alone = [], None, True
        self._written.clear()

    def read_events(self) -> list[Event]:
        """Return the events since the last call."""
        fresh: list[Event] = empty_completions(self.request, self.ended) if self.ended else []
        for sequence in self.sequences:
            fresh += [unsent for event in sequence.events if (unsent := self._unsent(event)) is not None]
            sequence.events.clear()
        if self.answer is not None:
            self.answer.feed("".join(event.text for event in fresh if isinstance(event, TextEvent)))
        self.events += fresh
        return fresh

    def is_overdue(self, now: float) -> bool:
        """Return whether one of its time limits has passed."""
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


Finish = Callable[[Sequence, FinishReason], None]
Put = Callable[[CodespecError | None], None]  # called with None in its turn, or with the error that no turn comes


class Queue:
    """All requests of an engine with `slots` sequences a round. `finish` ends a sequence and frees what it holds."""

    def __init__(self, slots: int = 1, finish: Finish = lambda sequence, reason: None) -> None:
        self.slots = slots
        self.jobs: list[Job] = []  # in order of arrival; a finished one stays until `end`, or until another arrives
        self.rounds = 0
        self.finish = finish
        self._numbers = count()
        self._put: list[Put] = []
        self._closed = False
        self._arrival = threading.Condition()

    def put(self, function: Put) -> None:
        """Let the engine's thread call a function; from any thread. Raise ServeError if the queue is closed."""
        with self._arrival:
            if self._closed:
                raise ServeError(Fault("", "The engine has stopped", "restart the daemon"))
            self._put.append(function)
            self._arrival.notify()

    def wait(self, seconds: float | None) -> bool:
        """Wait until something was put, at most `seconds` (None: no limit). Return whether it was."""
        with self._arrival:
            return self._arrival.wait_for(lambda: bool(self._put), seconds)

    def take(self) -> list[Put]:
        """Return what was put, in order of arrival."""
        with self._arrival:
            taken, self._put = self._put, []
            return taken

    def close(self) -> list[Put]:
        """Refuse what is put from now on. Return what was put before."""
        with self._arrival:
            self._closed = True
        return self.take()

    def serve(self, slots: int, finish: Finish) -> Queue:
        """Let another engine run what waits here. Return the queue."""
        self.slots, self.finish = slots, finish
        return self

    def idle_for(self, now: float) -> float | None:
        """Return the seconds until a request can run, or None if there is none."""
        return min((max(0.0, job.arrived - now) for job in self.jobs if not job.finished), default=None)

    def add(self, job: Job) -> None:
        """Add a request."""
        self.jobs = [other for other in self.jobs if not other.finished]
        job.number = next(self._numbers)
        self.jobs.append(job)

    def end(self, job: Job, reason: FinishReason = "cancelled") -> None:
        """End a request, waiting, running or finished, and remove it."""
        self.stop(job, reason)
        if job in self.jobs:
            self.jobs.remove(job)

    def expire(self, now: float) -> None:
        """Stop the requests whose time limit has passed or that have nothing to generate."""
        for job in self.jobs:
            for sequence in job.sequences:
                if sequence.ending and sequence.ending.idle and not sequence.finish_reason:
                    self.finish(sequence, "stop")
            if not job.finished and job.is_overdue(now):
                self.stop(job, "deadline")

    def restart(self, job: Job) -> None:
        """Cancel a running request and let it wait again, to run alone."""
        self.stop(job, "cancelled")
        job.restart()

    def next_round(self, now: float, start: Callable[[Job], None]) -> list[Sequence]:
        """Return the sequences of the next round, in order of arrival.

        `start` is called for each chosen job that waits. It sets the job's sequences, or ends the job.
        """
        while True:
            self.expire(now)
            chosen = self._choose(now)
            waiting = [job for job, _ in chosen if not job.sequences]
            if not waiting:
                break
            for job in waiting:
                start(job)
        self.rounds += bool(chosen)
        for job in self.jobs:
            job.rounds_waited += bool(chosen) and all(job is not other for other, _ in chosen)
        return [job.sequences[choice] for job, choice in sorted(chosen, key=lambda pair: (pair[0].number, pair[1]))]

    def stop(self, job: Job, reason: FinishReason) -> None:
        """End the choices that have not ended, or the request as a whole if it has not started."""
        if not job.sequences:
            job.ended = reason
        for sequence in job.sequences:
            if not sequence.finish_reason:
                self.finish(sequence, reason)

    def _choose(self, now: float) -> list[tuple[Job, int]]:
        """Return the (job, choice) pairs of the next round, at most `slots`; a job that failed with others is alone."""
        jobs = [job for job in self.jobs if job.arrived <= now and not job.finished]
        highest = min(map(effective_priority, jobs), default=None)
        eligible = [job for job in jobs if effective_priority(job) == highest]
        everything = [(job, choice) for job in eligible for choice in job.runnable]
        if len(everything) <= self.slots and not any(job.alone for job in eligible):
            return everything
        first = self._share_of_oldest(min(eligible, key=lambda job: job.number))
        leader = first[0][0] if first else min(eligible, key=_remaining)
        together = [leader] if leader.alone else [job for job in eligible if not job.alone]
        return (first + [choice for choice in _round_robin(together, self.slots) if choice not in first])[: self.slots]

    def _share_of_oldest(self, oldest: Job) -> list[tuple[Job, int]]:
        """Return the choices of the oldest job that are reserved before all others."""
        if self.slots >= OLDEST_SHARE and not oldest.alone:
            return [(oldest, choice) for choice in oldest.runnable[: self.slots // OLDEST_SHARE]]
        its_quantum = self.rounds // QUANTUM % OLDEST_SHARE == OLDEST_SHARE - 1
        return [(oldest, choice) for choice in oldest.runnable] if its_quantum else []


def effective_priority(job: Job) -> Priority:
    """Return a job's priority. An edit or a warm-up that has waited AGING rounds counts as a completion."""
    aged = job.priority in (Priority.EDIT, Priority.WARM_UP) and job.rounds_waited >= AGING
    return Priority.INTERACTIVE if aged else job.priority


def share_rows(sequences: collections.abc.Sequence[Sequence], rows: int) -> None:
    """Set `feed`, the pending ids that each sequence of a round processes. `sequences` are in order of arrival.

    A decoding sequence feeds all its pending ids. Prompts share `rows`, so that a long prompt delays other streams by
    at most that many: a quarter goes to the oldest, then an equal part to the shortest of each client, then the rest to
    the shortest first.
    """
    for sequence in sequences:
        sequence.feed = sequence.num_wanted
    readers, left = [sequence for sequence in sequences if sequence.feed > 1], rows
    for reader in readers:
        reader.feed = 0
    shares = [(reader, rows // OLDEST_SHARE) for reader in readers[:1]]
    shortest_first = sorted(readers, key=lambda reader: reader.num_wanted)
    of_clients = {reader.request.scope: reader for reader in reversed(shortest_first)}
    shares += [(reader, rows // len(of_clients)) for reader in shortest_first if reader in of_clients.values()]
    shares += [(reader, rows) for reader in shortest_first]
    for reader, most in shares:
        feed = min(reader.num_wanted - reader.feed, most, left)
        reader.feed += feed
        left -= feed


def empty_completions(request: CompletionRequest, reason: FinishReason) -> list[Event]:
    """Return DoneEvents without text for a request that never ran or was superseded."""
    return [DoneEvent(n, Completion("", (), reason, Stats(), n)) for n in range(request.n)]


def _round_robin(jobs: Collection[Job], most: int) -> list[tuple[Job, int]]:
    """Return runnable choices in round-robin order of the clients and of each client's documents, at most `most` each.

    The choices of one document are ordered by the tokens left to generate.
    """
    choices = ((job, choice) for job in sorted(jobs, key=_remaining) for choice in job.runnable)
    by_document = _take_turns(choices, lambda job: job.request.owner, most)
    return _take_turns(by_document, lambda job: job.request.scope, most)


def _take_turns(choices: Iterable[tuple[Job, int]], key: Callable[[Job], Hashable], most: int) -> list[tuple[Job, int]]:
    """Return the choices in round-robin order of `key`, at most `most` each. Equals keep their order."""
    ranked: list[tuple[int, tuple[Job, int]]] = []
    taken: Counter[Hashable] = Counter()
    for pair in choices:
        rank = taken[key(pair[0])]
        if rank < most:
            ranked.append((rank, pair))
            taken[key(pair[0])] += 1
    ranked.sort(key=lambda pair: pair[0])
    return [pair for _, pair in ranked]


def _remaining(job: Job) -> tuple[int, int]:
    """Return the sort key: tokens left, then order of arrival."""
    return job.remaining, job.number
