"""The daemon's interface for HTTP handlers: readiness, the served model, and requests with a bounded queue."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import NoReturn

from aiohttp import web

from codespec.errors import ServeError
from codespec.json_store import Unkept
from codespec.server.accounts import Account, Keyring
from codespec.server.handles import Failed, RequestHandle, RequestMetrics
from codespec.server.loading import Loaded, Source
from codespec.server.logs import LogOutput

RETRY_SECONDS = 1  # delay before a client retries
_PINNED: ContextVar[Source | None] = ContextVar("engine", default=None)


class Daemon:
    """One source of text with a queue of at most `queue` requests in addition to the running ones."""

    def __init__(
        self, source: Source, queue: int, output: LogOutput | None = None, keyring: Keyring | None = None
    ) -> None:
        self.current = source
        self.incoming: Source | None = None  # the last source that began to load as a replacement
        self.held: asyncio.Event | None = None  # set at the end of a replacement; None: no request has to wait
        self.queue = queue
        self.output = output or LogOutput()
        self.keyring = keyring
        self.faults: list[Callable[[], str]] = []  # each returns a sentence about a file of the daemon, or ""
        self.stopping = False
        self.metrics = RequestMetrics()
        self.encoding = asyncio.Lock()  # only one long text is encoded at a time, which leaves a core for the engine
        self._open: dict[RequestHandle, Source] = {}
        self._users: Counter[Source] = Counter()  # requests by the engine that they use
        self._num_held = 0
        self._changed = asyncio.Event()

    @property
    def source(self) -> Source:
        """The engine of the current request, which keeps it until it ends; outside a request, the current engine."""
        return _PINNED.get() or self.current

    @property
    def num_open(self) -> int:
        """Number of running and waiting requests."""
        return sum(not handle.over for handle in self._open)

    @property
    def state(self) -> str:
        """One of starting, ready, stopping, failed or stopped."""
        if self.held is not None and not self.stopping:
            return "starting"
        return "stopping" if self.stopping else self.source.state

    @property
    def reason(self) -> str:
        """Why the daemon can't serve yet or has failed, as a clause; "" in other states."""
        source = self.incoming if self.held is not None and self.incoming is not None else self.source
        if source.error is not None:
            return source.error.fault.clause
        starts = source.loaded is None or source.state != "ready"
        return f"{source.progress.phase}, {source.progress.seconds:.0f} s so far" if starts else ""

    @property
    def warning(self) -> str:
        """A sentence about files that can't be written, or "" if there are none."""
        loaded = self.source.loaded
        notes = loaded.engine.notes if loaded is not None else []
        unkept = (f"{note[:1].upper()}{note[1:]}; make room there." for note in notes if isinstance(note, Unkept))
        faults = (fault for read in self.faults if (fault := read()))
        return self.output.warning or self.source.warning or next(faults, "") or next(unkept, "")

    @property
    def num_running(self) -> int:
        """Number of open requests that the engine currently runs."""
        return sum(source.num_running for source in self.sources)

    @property
    def num_waiting(self) -> int:
        """Number of open requests that wait for the engine."""
        return max(0, self.num_open - self.num_running)

    def loaded(self) -> Loaded:
        """Return the engine and its model's properties. Raise ServeError if they are not available."""
        source = self.source
        if self.stopping:
            raise stopping()
        if source.error is not None:
            raise ServeError(source.error.fault, 503, state="failed")
        if source.loaded is None or source.state != "ready":
            sentence = f"The daemon is starting ({self.reason}): try again in a moment."
            raise ServeError(sentence, 503, RETRY_SECONDS, "starting")
        return source.loaded

    def ready(self) -> Loaded:
        """Like `loaded`, but count a request that arrives too early as refused."""
        try:
            return self.loaded()
        except ServeError:
            self.metrics.refused["not_ready"] += 1
            raise

    @contextmanager
    def submit(
        self, handle: RequestHandle, scope: str, account: Account | None = None, session: str = ""
    ) -> Iterator[None]:
        """Submit a request; abort it if the block exits early. Raise ServeError if the daemon can't take it."""
        slots = self.ready().slots
        if self.num_open >= slots + self.queue and not self._make_room(scope):
            self.metrics.refused["queue_full"] += 1
            if account is not None:
                account.refused["queue_full"] += 1
            raise self._full()
        if account is not None:
            account.check()
        handle.request, handle.session = replace(handle.request, scope=scope), session
        self.source.admit(handle)
        self._open[handle] = self.source
        if account is not None:
            account.open.add(handle)
        try:
            yield
        finally:
            self._open.pop(handle, None)
            self.metrics.end(handle)
            if account is not None:
                account.end(handle)
            if not handle.over:
                self.source.abort(handle)

    def _make_room(self, scope: str) -> bool:
        """Refuse the newest waiting request of the client with the most requests, if `scope` would still have fewer.

        A client that fills the queue thus makes room for the others (longest queue drop, Suter et al. 1998).
        """
        counts = Counter(handle.request.scope for handle in self._open if not handle.over)
        busiest, most = counts.most_common(1)[0]
        waiting = [handle for handle in self._open if handle.request.scope == busiest and handle.waits]
        if most <= counts[scope] + 1 or not waiting:
            return False
        self.metrics.refused["queue_full"] += 1
        self.refuse([max(waiting, key=lambda handle: handle.arrived)], self._full())
        return True

    def _full(self) -> ServeError:
        wait = math.ceil(RETRY_SECONDS * self.num_open / max(1, self.ready().slots) / 8)
        return ServeError(f"{self.num_open} requests are open: try again in a moment.", 429, max(1, wait))

    def revoke(self, account: Account) -> None:
        """End the completions of a key that is no longer valid."""
        sentence = f"The key {account.name!r} was revoked: ask the daemon's owner for a new one."
        self.refuse(account.open, ServeError(sentence, 401))

    def refuse(self, handles: Collection[RequestHandle], error: ServeError) -> None:
        """End requests with an error: an event in a stream, or an HTTP status if no reply was sent."""
        for handle in list(handles):
            self._open[handle].abort(handle)
            handle.push([Failed(error)])

    def refuse_open(self) -> None:
        """End all open requests, because the daemon stops."""
        self.refuse(self._open, stopping())
        if self.held is not None:
            self.held.set()

    @property
    def sources(self) -> list[Source]:
        """The current engine, replaced engines with open requests, and an engine that is loading."""
        return list({self.current: 0, **self._users, **({self.incoming: 0} if self.incoming else {})})

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Let the request that runs the block keep the current engine, even if it is replaced in the meantime."""
        source = self.current
        token = _PINNED.set(source)
        self._users[source] += 1
        try:
            yield
        finally:
            _PINNED.reset(token)
            self._users[source] -= 1

    def num_users(self, source: Source) -> int:
        """Return the number of requests that still use an engine."""
        return self._users[source]

    def use(self, source: Source) -> None:
        """Use another engine for new requests."""
        self.current, self.incoming = source, None
        self._users[source] += 0
        self._changed.set()

    def forget(self, source: Source) -> None:
        """Drop an engine that no request uses."""
        del self._users[source]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let new requests wait until the block ends."""
        self.held = asyncio.Event()
        try:
            yield
        finally:
            self.held.set()
            self.held = None

    async def until_released(self) -> None:
        """Wait while requests are held. Raise ServeError if too many wait already."""
        if self._num_held >= self.queue:
            self.metrics.refused["queue_full"] += 1
            sentence = f"{self._num_held} requests wait for the models to be replaced: try again in a moment."
            raise ServeError(sentence, 429, RETRY_SECONDS)
        self._num_held += 1
        try:
            while self.held is not None and not self.stopping:
                await self.held.wait()
        finally:
            self._num_held -= 1

    async def until_failed(self) -> NoReturn:
        """Wait until the current engine has failed, and raise its error."""
        while True:
            self._changed.clear()
            tasks = [asyncio.ensure_future(wait) for wait in (self.current.until_failed(), self._changed.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            tasks[1].cancel()
            if tasks[0].done() and self.current.error is not None:
                raise self.current.error
            tasks[0].cancel()


def stopping() -> ServeError:
    """Return the error for requests to a daemon that is shutting down."""
    return ServeError("The daemon is stopping: try again later.", 503, 5, "stopping")


DAEMON: web.AppKey[Daemon] = web.AppKey("daemon", Daemon)
