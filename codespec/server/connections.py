"""The daemon's sockets (a port, and a Unix socket in the user's state folder) and the connections on them.

There are never more connections than the process may have files open. At the bound a new connection replaces the oldest
one without a request, then the oldest one whose request is incomplete. If all of them are being answered, a few more
are let in: they get an error, or the daemon's health. Knows connections and whether a request is complete; knows no
fields and no engine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.errors import CodespecError, ConfigError, ServeError
from codespec.serve_config import ServeConfig
from codespec.server.logs import log
from codespec.server.unix_socket import claimed
from codespec.server.wire import route_of
from codespec.user_folders import own_folder, socket_of

OWN_FILES = 64  # models, libraries, devices, learned state
LEAST_FILES = 128  # less leaves no room for connections
MOST = 1024  # of an editor's daemon, whatever the system allows: each takes memory too
MOST_BACKLOG = 128  # connections that one address accepts in one iteration of the event loop
OPEN_BACKLOGS = 6  # of connections that are accepted or closing but not counted, on up to three addresses
SPARE = 8  # connections beyond the bound
POLL_SECONDS = 0.02


class Connections:
    """The connections of one application, in a process that may have `files` files open."""

    def __init__(self, files: int) -> None:
        room = max(files, LEAST_FILES) - OWN_FILES
        self.backlog = max(1, min(MOST_BACKLOG, room // (4 * OPEN_BACKLOGS)))
        self.most = min(MOST, room - OPEN_BACKLOGS * self.backlog - SPARE)
        self._alive: list[web.RequestHandler] = []
        self._requests: dict[web.RequestHandler, web.Request] = {}
        self._reported = False

    def protocol(self, server: web.Server) -> asyncio.BaseProtocol:
        """The protocol of a connection that was just accepted."""
        self._alive = [one for one in server.connections if one.transport and not one.transport.is_closing()]
        if len(self._alive) >= self.most:
            self.report()
            if not self._give_way() and len(self._alive) >= self.most + SPARE:
                return _Refusing()
        return server()

    def watch(self, open_paths: Collection[str]) -> Middleware:
        """Keeps track of open requests; beyond the bound only `open_paths` (routes) are answered."""

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
        """Logs once that there are too many: more lines could fill a disk."""
        if not self._reported:
            self._reported = True
            log.warning(
                "%d connections are open, as many as the limit of open files allows: idle ones are closed for new "
                "ones; a higher `ulimit -n` allows up to %d (logged once)",
                len(self._alive),
                MOST,
            )

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handles the event loop's own errors; running out of files is one log line, not many tracebacks."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self.report()
        else:
            loop.default_exception_handler(context)

    async def quiet(self, seconds: float, error: Callable[[], CodespecError]) -> bool:
        """Waits until no request is open; False if one still is after so many seconds. A request that is incomplete is
        no work that could finish: it ends with the error at once, also if it begins meanwhile."""
        end = asyncio.get_running_loop().time() + seconds
        while self._requests:
            self._refuse_unread(error)
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _refuse_unread(self, error: Callable[[], CodespecError]) -> None:
        for request in self._requests.values():
            if not request.content.is_eof() and request.content.exception() is None:
                request.content.set_exception(error())

    def _give_way(self) -> bool:
        """Closes the least important connection; False if all are being answered."""
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


async def listen(runner: web.AppRunner, config: ServeConfig) -> None:
    """Opens the sockets and prints their addresses. Raises ConfigError if one is in use."""
    try:
        await _Tcp(runner, config).start()
    except OSError as error:
        raise ConfigError(_why_not(config, error)) from error
    host = f"[{config.host}]" if ":" in config.host else config.host
    port = runner.addresses[0][1]
    print(f"codespec: listening on http://{host}:{port}", flush=True)
    if config.socket == "auto":
        await _listen_own(runner, port)
    elif config.socket not in ("", "none"):
        await _listen_unix(runner, Path(config.socket).expanduser())


class _Tcp(web.BaseSite):
    """As `web.TCPSite`, within the bound on connections."""

    def __init__(self, runner: web.AppRunner, config: ServeConfig) -> None:
        self._connections, self._config = runner.app[CONNECTIONS], config
        super().__init__(runner, backlog=self._connections.backlog)

    @property
    def name(self) -> str:
        """Its address."""
        return f"http://{self._config.host}:{self._config.port}"

    async def start(self) -> None:
        """Listens."""
        await super().start()
        assert self._runner.server is not None
        factory = partial(self._connections.protocol, self._runner.server)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(factory, self._config.host, self._config.port, backlog=self._backlog)
        _restore_backlog(self._server)


class _Unix(web.BaseSite):
    """The same for a Unix socket, for this user alone. At its end it leaves a socket that another daemon made since."""

    def __init__(self, runner: web.AppRunner, path: Path) -> None:
        self._connections, self._path = runner.app[CONNECTIONS], path
        self._made: os.stat_result | None = None
        super().__init__(runner, backlog=self._connections.backlog)

    @property
    def name(self) -> str:
        """Its address."""
        return f"unix:{self._path}"

    async def start(self) -> None:
        """Listens."""
        await super().start()
        assert self._runner.server is not None
        factory = partial(self._connections.protocol, self._runner.server)
        async with claimed(self._path, self._backlog) as own:
            self._made = self._path.lstat()
            self._server = await asyncio.get_running_loop().create_unix_server(factory, sock=own, backlog=self._backlog)
        _restore_backlog(self._server)

    async def stop(self) -> None:
        """Removes its socket, while it still listens and so nobody replaces it, and stops listening."""
        with suppress(FileNotFoundError):
            if self._made is not None and os.path.samestat(self._path.lstat(), self._made):
                self._path.unlink()
        await super().stop()


def _restore_backlog(server: asyncio.Server) -> None:
    """Lets the usual number of connections wait: asyncio's backlog is also how many it accepts at once, a few."""
    for own in server.sockets:
        with socket.socket(fileno=os.dup(own.fileno())) as same:
            same.listen(MOST_BACKLOG)


async def _listen_own(runner: web.AppRunner, port: int) -> None:
    """Listens on the user's own socket if it can: without it, clients ask for a proof on the port."""
    try:
        own_folder()
        await _listen_unix(runner, socket_of(port))
    except ConfigError as error:
        print(f"codespec: goes on without a socket. {error}", file=sys.stderr, flush=True)


async def _listen_unix(runner: web.AppRunner, path: Path) -> None:
    try:
        await _Unix(runner, path).start()
    except OSError as error:
        why = error.strerror or error  # asyncio's error for a path that is too long has no number
        raise ConfigError(f"The socket {path} can't be made ({why}): choose another place with --socket.") from error
    print(f"codespec: listening on unix:{path}", flush=True)


def _why_not(config: ServeConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = f"Port {config.port} of {config.host} is in use"
        return f"{where}: stop the other program, or choose another with --port (0 takes a free one)."
    if error.errno == errno.EACCES:
        return f"Port {config.port} needs rights you do not have: choose one from 1024 on with --port."
    return f"The daemon can't listen on {config.host}:{config.port} ({error.strerror}): check --host."
