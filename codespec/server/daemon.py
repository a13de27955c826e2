"""The daemon as HTTP handlers see it: readiness, the served model, and request submission with a bounded queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from aiohttp import web

from codespec.errors import ServeError
from codespec.json_store import Unkept
from codespec.server.handles import Failed, RequestHandle
from codespec.server.loading import Loaded
from codespec.server.logs import Output
from codespec.server.metrics import RequestMetrics
from codespec.server.source import Source

RETRY_SECONDS = 1  # delay before a client retries


class Daemon:
    """One source of text with a queue of at most `queue` requests in addition to the running ones."""

    def __init__(self, engine_thread: Source, queue: int, output: Output | None = None) -> None:
        self.engine_thread = engine_thread
        self.queue = queue
        self.output = output or Output()
        self.stopping = False
        self.metrics = RequestMetrics()
        self.encoding = asyncio.Lock()  # encode one long text at a time, which leaves a core for the engine
        self._open: set[RequestHandle] = set()

    @property
    def num_open(self) -> int:
        """Number of running and waiting requests."""
        return sum(not handle.over for handle in self._open)

    @property
    def state(self) -> str:
        """One of starting, ready, stopping, failed or stopped."""
        return "stopping" if self.stopping else self.engine_thread.state

    @property
    def reason(self) -> str:
        """Why the daemon can't serve yet or has failed, as a clause; "" in other states."""
        thread = self.engine_thread
        if thread.error is not None:
            return thread.error.fault.clause
        starts = thread.loaded is None or thread.state != "ready"
        return f"{thread.progress.phase}, {thread.progress.seconds:.0f} s so far" if starts else ""

    @property
    def warning(self) -> str:
        """A sentence about files that can't be written, or "" if there are none."""
        loaded = self.engine_thread.loaded
        notes = loaded.engine.notes if loaded is not None else []
        unkept = (f"{note[:1].upper()}{note[1:]}; make room there." for note in notes if isinstance(note, Unkept))
        return self.output.warning or self.engine_thread.warning or next(unkept, "")

    @property
    def num_running(self) -> int:
        """Number of open requests that the engine currently runs."""
        return self.engine_thread.num_running

    @property
    def num_waiting(self) -> int:
        """Number of open requests that wait for the engine."""
        return max(0, self.num_open - self.num_running)

    def loaded(self) -> Loaded:
        """Return the engine and its model's properties. Raise ServeError if they are not available."""
        thread = self.engine_thread
        if self.stopping:
            raise stopping()
        if thread.error is not None:
            raise ServeError(thread.error.fault, 503, state="failed")
        if thread.loaded is None or thread.state != "ready":
            sentence = f"The daemon is starting ({self.reason}): ask again in a moment."
            raise ServeError(sentence, 503, RETRY_SECONDS, "starting")
        return thread.loaded

    def ready(self) -> Loaded:
        """Like `loaded`, for a completion request: counts a request that arrives too early as refused."""
        try:
            return self.loaded()
        except ServeError:
            self.metrics.refused["not_ready"] += 1
            raise

    @contextmanager
    def submit(self, handle: RequestHandle, scope: str, session: str = "") -> Iterator[None]:
        """Submit a request; abort it if the block exits early. Raise ServeError if the daemon can't take it."""
        slots = self.ready().slots
        if self.num_open >= slots + self.queue:
            self.metrics.refused["queue_full"] += 1
            wait = math.ceil(RETRY_SECONDS * self.num_open / max(1, slots) / 8)
            raise ServeError(f"{self.num_open} requests are open: ask again in a moment.", 429, max(1, wait))
        handle.request, handle.session = replace(handle.request, scope=scope), session
        self.engine_thread.admit(handle)
        self._open.add(handle)
        try:
            yield
        finally:
            self._open.discard(handle)
            self.metrics.end(handle)
            if not handle.over:
                self.engine_thread.abort(handle)

    def refuse_open(self) -> None:
        """End all open requests with an error: an event in a stream, or an HTTP status if no reply was sent."""
        for handle in list(self._open):
            self.engine_thread.abort(handle)
            handle.push([Failed(stopping())])


def stopping() -> ServeError:
    """Return the error for requests to a daemon that is shutting down."""
    return ServeError("The daemon is stopping: ask again when it is back.", 503, 5, "stopping")


DAEMON: web.AppKey[Daemon] = web.AppKey("daemon", Daemon)
