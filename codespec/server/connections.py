"""Which connections are open and what each is at, so that there are never more than the process may have files open.

At the bound the oldest connection without a request gives way to a new one, then the oldest whose request has not come
whole. Where all are being answered, a few more are let in to be told so, and to ask after the daemon's health. Knows
connections and whether a request came whole; knows no fields and no engine.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.errors import CodespecError, ConfigError, ServeError
from codespec.server.logs import log
from codespec.server.security import route_of

OWN_FILES = 64  # models, libraries, devices, what is learned
LEAST_FILES = 128  # less leaves no room for connections
MOST = 1024  # of an editor's daemon, whatever the system allows: each takes memory too
MOST_BACKLOG = 128  # connections that one address takes from the system in one turn of the loop
IN_TURN = 6  # backlogs that are open beside the counted: taken, or being closed, on up to three addresses
SPARE = 8  # connections beyond the bound
POLL_SECONDS = 0.02


class Connections:
    """The connections of one application, in a process that may have `files` files open."""

    def __init__(self, files: int) -> None:
        room = max(files, LEAST_FILES) - OWN_FILES
        self.backlog = max(1, min(MOST_BACKLOG, room // (4 * IN_TURN)))
        self.most = min(MOST, room - IN_TURN * self.backlog - SPARE)
        self._alive: list[web.RequestHandler] = []
        self._requests: dict[web.RequestHandler, web.Request] = {}
        self._reported = False

    def protocol(self, server: web.Server) -> asyncio.BaseProtocol:
        """What speaks with a connection that was just taken."""
        self._alive = [one for one in server.connections if one.transport and not one.transport.is_closing()]
        if len(self._alive) >= self.most:
            self.report()
            if not self._give_way() and len(self._alive) >= self.most + SPARE:
                return _Refusing()
        return server()

    def watch(self, open_paths: Collection[str]) -> Middleware:
        """Knows what is asked; beyond the bound only `open_paths` (routes) are answered."""

        @web.middleware
        async def follow(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._requests[request.protocol] = request
            try:
                if len(self._requests) > self.most and route_of(request) not in open_paths:
                    raise ServeError(f"{len(self._requests)} requests are under way: ask again in a moment.", 503, 1)
                return await handler(request)
            finally:
                self._requests.pop(request.protocol, None)

        return follow

    def report(self) -> None:
        """Says that there are too many, once: whoever opens them could fill a disk with it."""
        if not self._reported:
            self._reported = True
            log.warning(
                "%d connections are open, as many as the limit of open files allows: idle ones are closed for new "
                "ones; a higher `ulimit -n` allows up to %d (told once)",
                len(self._alive),
                MOST,
            )

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's own errors; that no file can be opened for a connection is no traceback each."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self.report()
        else:
            loop.default_exception_handler(context)

    async def quiet(self, seconds: float) -> bool:
        """Waits until nothing is asked any more; False if it still is after so long."""
        end = asyncio.get_running_loop().time() + seconds
        while self._requests:
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def refuse_unread(self, error: Callable[[], CodespecError]) -> None:
        """Ends the wait for requests that have not come whole."""
        for request in self._requests.values():
            if not request.content.is_eof():
                request.content.set_exception(error())

    def _give_way(self) -> bool:
        """Closes the connection that is missed least; False if all are being answered."""
        idle = (one for one in self._alive if one not in self._requests)
        unread = (one for one, request in self._requests.items() if not request.content.is_eof())
        for one in chain(idle, unread):
            if one.transport is not None and not one.transport.is_closing():
                one.transport.abort()  # at once: it may have been sent more than it reads
                return True
        return False


class _Refusing(asyncio.Protocol):
    """Closes a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def open_files() -> int:
    """How many files this process may have open. Raises ConfigError where that is too few."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < LEAST_FILES:
        mend = f"allow {LEAST_FILES} or more with `ulimit -n`"
        raise ConfigError(f"The limit of open files is {limit}, too low for the daemon: {mend}.")
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections", Connections)
