"""The queue of one engine: every request from its arrival to its end, and the choices that run in the next round.

If more choices can run than there are slots, the requests with the fewest remaining tokens run first, so that a short
request does not wait for a long one (shortest remaining time first, Schrage 1968). Clients (each API key or user is a
client) take turns in round-robin order, and so do the documents of a client, so that a client with more requests or
more documents does not get more slots (fair queueing, Nagle 1985).

No request starves. The oldest request gets a quarter of the slots; with fewer than four slots, the oldest request runs
first for 16 rounds in every 64. If each of the oldest request's n choices takes r rounds, the request ends within r *
ceil(n / (slots // 4)) rounds, or with fewer than four slots within 4 * r * ceil(n / slots) + 64 rounds, regardless of
later arrivals. The request with the fewest remaining tokens begins in the next round; with fewer than four slots, it
waits at most 16 rounds. Completions run before edits, and requests for text before warm-ups, but an edit or a warm-up
that has waited 256 rounds counts as a completion (aging). Prefetches run only if there is no other work.

Other threads may only `put` functions, which the engine's thread calls between two rounds.
All times in this module are seconds of `time.perf_counter`.
"""

from __future__ import annotations

import collections.abc
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import count

from codespec.api.types import CompletionRequest, DoneEvent, FinishReason, Owner
from codespec.engine.job import Job, Message, Priority, RequestHandle, answers, empty_completions, follow_up, join
from codespec.errors import CodespecError, Fault, ServeError
from codespec.sequence import Sequence

OLDEST_SHARE = 4  # the oldest request owns one slot in four, or one quantum in four, and one prompt row in four
QUANTUM = 16  # rounds
AGING = 256  # rounds that an edit or a warm-up waits before it counts as a completion
MAX_PREFETCH_AGE_S = 60.0  # seconds that a prefetched completion is kept
MAX_DOCUMENTS = 32  # prefetched completions
NOTE = "prefetched: computed before it was requested"


class PrefetchCache:
    """Prefetched completions, at most one per document, each with its messages and the time at which it ended."""

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
        """Remove the prefetched completion of a handle's document; return its messages if they answer the request."""
        if handle.priority != Priority.INTERACTIVE:
            return []
        request, messages, finished = self._kept.pop(handle.owner, (None, [], 0.0))
        if request is None or now > finished + MAX_PREFETCH_AGE_S or not answers(request, handle.request):
            return []
        return messages


Finish = Callable[[Sequence, FinishReason], None]
Delivery = tuple[RequestHandle, Collection[Message]]
Put = Callable[[CodespecError | None], None]  # called with None, or with an error if the queue is closed


class Queue:
    """All requests of an engine that runs at most `slots` sequences per round; `finish` is called to end a sequence."""

    def __init__(self, slots: int = 1, finish: Finish = lambda sequence, reason: None) -> None:
        self.slots = slots
        self.finish = finish
        # Idle seconds until the request that follows an accepted completion is prefetched (None: never).
        self.patience: float | None = None
        self.jobs: list[Job] = []  # in order of arrival; a finished job is removed by `end`, or when another arrives
        self.outbox: list[Delivery] = []  # messages for the handles
        self.prefetched = PrefetchCache()
        self.rounds = 0
        self._numbers = count()
        self._put: deque[Put] = deque()
        self._closed = False
        self._arrival = threading.Condition()

    def put(self, function: Put) -> None:
        """Have the engine's thread call a function. Thread-safe. Raises ServeError if the queue is closed."""
        with self._arrival:
            if self._closed:
                raise ServeError(Fault("", "The engine has stopped", "restart the daemon"))
            self._put.append(function)
            self._arrival.notify()

    def wait(self, seconds: float | None) -> bool:
        """Wait at most `seconds` (None: no limit) for a call of `put`. Return whether a function is waiting."""
        with self._arrival:
            return self._arrival.wait_for(lambda: bool(self._put), seconds)

    def call_put(self) -> None:
        """Call the waiting functions in order of arrival. A function that raises an error stays queued for `close`."""
        for _ in range(len(self._put)):
            self._put[0](None)
            self._put.popleft()

    def close(self, error: CodespecError) -> None:
        """End all requests and waiting functions with an error, without calling the engine, which may be broken."""
        with self._arrival:
            self._closed = True
        while self._put:
            self._put.popleft()(error)
        self._send(self.handles, [error])
        self.jobs.clear()

    def idle_for(self, now: float) -> float | None:
        """Return the seconds until the next request can run, or None if there is no request."""
        return min((max(0.0, job.arrived - now) for job in self.jobs if not job.finished), default=None)

    @property
    def handles(self) -> list[RequestHandle]:
        """The handles of all clients' requests."""
        return [handle for job in self.jobs for handle in job.handles]

    def admit(self, handle: RequestHandle, refusal: CodespecError | None = None) -> None:
        """Accept a client's request, end the older requests that it supersedes, and cancel all other prefetches.

        An edit does not cancel a prefetch, because the prefetched completion is still likely to be requested. A request
        with a `refusal` is not run and ends with that error.
        """
        if refusal is not None:
            self._send([handle], [refusal])
        if handle.left or refusal is not None:
            return
        superseded = [older for older in self.handles if handle.supersedes(older)]
        computed = self.prefetched.take(handle, time.perf_counter())
        if computed:
            self._send([handle], computed)
        else:
            job = join(handle, self.jobs)
            if job not in self.jobs:
                self.add(job)
            self._send([handle], job.events)
        for older in superseded:
            self.abort(older)
            self._send([older], empty_completions(older.request, "cancelled"))
        if handle.priority != Priority.EDIT:
            for job in [job for job in self.jobs if job.priority == Priority.PREFETCH]:
                self.end(job)
        if computed:
            self._plan_prefetch(handle.request, computed)

    def abort(self, handle: RequestHandle) -> None:
        """Drop a client's request, and end its job if no other client shares the job."""
        if handle.job is not None and handle.job.leave(handle):
            self.end(handle.job)

    def add(self, job: Job) -> None:
        self.jobs = [other for other in self.jobs if not other.finished]
        job.number = next(self._numbers)
        self.jobs.append(job)

    def collect(self) -> None:
        """Send the new events of all jobs, and remove the jobs that have ended."""
        for job in list(self.jobs):
            events = job.read_events()
            if job.answered and not job.finished:
                self.stop(job, "stop")
                events += job.read_events()
            if not job.finished:
                self._send(job.handles, events)
                continue
            self.answer(job, events)
            if job.priority == Priority.PREFETCH:
                self.prefetched.put(job.request, job.events, time.perf_counter())
            elif job.priority == Priority.INTERACTIVE and job.request.after_first_ms is None:
                self._plan_prefetch(job.request, job.events)

    def answer(self, job: Job, messages: Collection[Message]) -> None:
        """Send a job's last messages and remove the job."""
        self._send(job.handles, messages)
        job.handles = []
        self.end(job)

    def end(self, job: Job, reason: FinishReason = "cancelled") -> None:
        """End a job in any state and remove it from the queue."""
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
        """Cancel a running job and queue it again, so that it runs alone."""
        self.stop(job, "cancelled")
        job.restart()

    def next_round(self, now: float, start: Callable[[Job], None]) -> list[Sequence]:
        """Return the next round's sequences, in order of arrival. `start` starts, or ends, each chosen new job."""
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

    def _plan_prefetch(self, request: CompletionRequest, messages: Collection[Message]) -> None:
        if self.patience is None:
            return
        upcoming = follow_up(request, messages, time.perf_counter() + self.patience)
        if upcoming is not None:
            self.add(upcoming)

    def _send(self, handles: Iterable[RequestHandle], messages: Collection[Message]) -> None:
        if messages:
            self.outbox += [(handle, list(messages)) for handle in handles]

    def stop(self, job: Job, reason: FinishReason) -> None:
        """End the unfinished choices of a job, or the whole job if it has not started."""
        if not job.sequences:
            job.ended = reason
        for sequence in job.sequences:
            if not sequence.finish_reason:
                self.finish(sequence, reason)

    def _choose(self, now: float) -> list[tuple[Job, int]]:
        """Return at most `slots` (job, choice) pairs for the next round; a job that failed in a batch runs alone."""
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
        """Return the choices of the oldest job that get slots before all other jobs."""
        if self.slots >= OLDEST_SHARE and not oldest.alone:
            return [(oldest, choice) for choice in oldest.runnable[: self.slots // OLDEST_SHARE]]
        its_quantum = self.rounds // QUANTUM % OLDEST_SHARE == OLDEST_SHARE - 1
        return [(oldest, choice) for choice in oldest.runnable] if its_quantum else []


def effective_priority(job: Job) -> Priority:
    """Return a job's priority. An edit or a warm-up that has waited AGING rounds counts as a completion."""
    aged = job.priority in (Priority.EDIT, Priority.WARM_UP) and job.rounds_waited >= AGING
    return Priority.INTERACTIVE if aged else job.priority


def share_rows(sequences: collections.abc.Sequence[Sequence], rows: int) -> None:
    """Set each sequence's `feed`, the number of pending ids that it processes in this round.

    `sequences` must be in order of arrival. A decoding sequence processes all its pending ids. Prompts share `rows`
    rows, so that a long prompt delays other streams by at most that many rows: a quarter goes to the oldest prompt,
    then equal shares to the shortest prompt of each client, and the rest to the shortest prompts of all.
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


def _round_robin(jobs: Collection[Job], most: int) -> list[tuple[Job, int]]:
    """Return at most `most` runnable choices per client, taking turns by client, document and remaining tokens."""
    choices = ((job, choice) for job in sorted(jobs, key=_remaining) for choice in job.runnable)
    by_document = _take_turns(choices, lambda job: job.request.owner, most)
    return _take_turns(by_document, lambda job: job.request.scope, most)


def _take_turns(choices: Iterable[tuple[Job, int]], key: Callable[[Job], Hashable], most: int) -> list[tuple[Job, int]]:
    """Return at most `most` choices per key, in round-robin order of the keys and otherwise in the given order."""
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
    return job.remaining, job.number
