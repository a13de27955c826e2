"""What handlers see of the daemon: whether it is ready, what it serves, and the door to the engine's thread.

Knows the bound on open requests; knows no dialect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from aiohttp import web

from codespec.errors import ServeError
from codespec.server.loading import Loaded
from codespec.server.metrics import RequestMetrics
from codespec.server.output import Output
from codespec.server.tickets import Ask, Failed, Priority, Ticket
from codespec.server.worker import Worker

WAIT_SECONDS = 1  # what a client is told to wait before it asks again
UNKEPT = "can't be kept in"  # as the engine's notes have it


class Daemon:
    """One worker, and at most `queue` requests that wait for it beside those that run."""

    def __init__(self, worker: Worker, queue: int, output: Output | None = None) -> None:
        self.worker = worker
        self.queue = queue
        self.output = output or Output()
        self.stopping = False
        self.metrics = RequestMetrics()
        self.encoding = asyncio.Lock()  # one long text at a time, so that a core is left for the engine
        self._tickets: set[Ticket] = set()

    @property
    def num_open(self) -> int:
        """Requests that the engine still works for, or will."""
        return sum(not ticket.over for ticket in self._tickets)

    @property
    def state(self) -> str:
        """starting, ready, stopping, failed or stopped."""
        return "stopping" if self.stopping else self.worker.state

    @property
    def warning(self) -> str:
        """What can't be written, in one sentence; "" where all can."""
        notes = self.worker.loaded.engine.notes if self.worker.loaded is not None else []
        unkept = (f"{note[:1].upper()}{note[1:]}; make room there." for note in notes if UNKEPT in note)
        return self.output.warning or next(unkept, "")

    @property
    def num_running(self) -> int:
        """Open requests that the engine works for at this moment."""
        desk = self.worker.desk
        return 0 if desk is None else sum(len(job.tickets) for job in list(desk.jobs.running))

    @property
    def num_waiting(self) -> int:
        """Open requests that wait for it."""
        return max(0, self.num_open - self.num_running)

    def loaded(self) -> Loaded:
        """The engine and what is told of it. Raises ServeError while there is none."""
        worker = self.worker
        if self.stopping:
            raise stopping()
        if worker.error is not None:
            raise ServeError(str(worker.error), 503)
        if worker.loaded is None or worker.state != "ready":
            said = f"The daemon is starting ({worker.progress.phase}, {worker.progress.seconds:.0f} s so far)"
            raise ServeError(f"{said}: ask again in a moment.", 503, WAIT_SECONDS)
        return worker.loaded

    def ready(self) -> Loaded:
        """As `loaded`, for a request of completion: one that comes too early is counted."""
        try:
            return self.loaded()
        except ServeError:
            self.metrics.refused["not_ready"] += 1
            raise

    @contextmanager
    def ask(self, ask: Ask, scope: str) -> Iterator[Ticket]:
        """A ticket for whoever asks in this scope; who leaves the block early, cancels. Raises ServeError where the
        daemon takes none now.
        """
        slots = self.ready().slots
        if self.num_open >= slots + self.queue:
            self.metrics.refused["queue_full"] += 1
            wait = math.ceil(WAIT_SECONDS * self.num_open / max(1, slots) / 8)
            raise ServeError(f"{self.num_open} requests are open: ask again in a moment.", 429, max(1, wait))
        ticket = Ticket(replace(ask, request=replace(ask.request, scope=scope)))
        self.worker.admit(ticket)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            self.metrics.end(ticket.course, ask.priority.name.lower(), timed=ask.priority == Priority.INTERACTIVE)
            if not ticket.over:
                self.worker.leave(ticket)

    def refuse_open(self) -> None:
        """Ends what is still asked: streams by an event, what has no reply yet by its status."""
        for ticket in list(self._tickets):
            self.worker.leave(ticket)
            ticket.push([Failed(stopping())])


def stopping() -> ServeError:
    """What is said to whoever asks a daemon that is about to end."""
    return ServeError("The daemon is stopping: ask again when it is back.", 503, 5)


DAEMON: web.AppKey[Daemon] = web.AppKey("daemon", Daemon)
