"""What handlers see of the daemon: whether it is ready, what it serves, and the door to the engine's thread.

Knows the bound on open requests; knows no dialect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from codespec.errors import ServeError
from codespec.server.loading import Loaded
from codespec.server.tickets import Ask, Ticket
from codespec.server.worker import Worker
from codespec.types import Completion

WAIT_SECONDS = 1  # what a client is told to wait before it asks again


class Daemon:
    """One worker, and at most `queue` requests that wait for it beside those that run."""

    def __init__(self, worker: Worker, queue: int) -> None:
        self.worker = worker
        self.queue = queue
        self.stopping = False
        self._tickets: set[Ticket] = set()

    @property
    def num_open(self) -> int:
        """Requests that the engine still works for, or will."""
        return sum(not ticket.over for ticket in self._tickets)

    def loaded(self) -> Loaded:
        """The engine and what is told of it. Raises ServeError while there is none."""
        worker = self.worker
        if self.stopping:
            raise ServeError("The daemon is stopping: ask again when it is back.", 503, 5)
        if worker.error is not None:
            raise ServeError(str(worker.error), 503)
        if worker.loaded is None or worker.state != "ready":
            said = f"The daemon is starting ({worker.progress.phase}, {worker.progress.seconds:.0f} s so far)"
            raise ServeError(f"{said}: ask again in a moment.", 503, WAIT_SECONDS)
        return worker.loaded

    @contextmanager
    def ask(self, ask: Ask) -> Iterator[Ticket]:
        """A ticket; who leaves the block early, cancels. Raises ServeError where the daemon takes none now."""
        slots = self.loaded().slots
        if self.num_open >= slots + self.queue:
            wait = math.ceil(WAIT_SECONDS * self.num_open / max(1, slots) / 8)
            raise ServeError(f"{self.num_open} requests are open: ask again in a moment.", 429, max(1, wait))
        ticket = Ticket(ask)
        self.worker.admit(ticket)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            if not ticket.over:
                self.worker.leave(ticket)

    async def complete(self, ask: Ask) -> list[Completion]:
        """All choices of one ask."""
        with self.ask(ask) as ticket:
            return await ticket.completions()


DAEMON: web.AppKey[Daemon] = web.AppKey("daemon", Daemon)
