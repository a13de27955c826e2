"""The daemon's sockets (a TCP port and a Unix socket in the user's state folder) and their connections.

The number of connections is limited by the process's file descriptor limit. At the limit, a new connection replaces the
oldest one without a request, then the oldest one whose request is incomplete. If all connections are busy, a few more
are accepted; they get an error or the health reply.

A Unix socket in use is kept; a stale one is replaced. Daemons that start at the same path take turns, because one could
otherwise remove a socket that another has just created.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.api.config import ServeConfig
from codespec.errors import CodespecError, ConfigError, ServeError
from codespec.server.logs import log
from codespec.server.wire import route_of
from codespec.user_folders import named_path, own_folder, socket_of

OWN_FILES = 64  # file descriptors for models, libraries, devices, learned state
MIN_FILES = 128  # a lower limit leaves no room for connections
MAX = 1024  # connections, which take memory too; more than an editor's daemon needs
MAX_BACKLOG = 128  # connections accepted per address in one iteration of the event loop
OPEN_BACKLOGS = 6  # for connections being accepted or closed: two backlogs for each of up to three addresses
SPARE = 8  # connections accepted beyond the limit
POLL_SECONDS = 0.02
PROBE_SECONDS = 1.0  # for the holder of a Unix socket to accept a connection
TURN_SECONDS = 5.0  # to wait for other daemons that create sockets in the same folder


class Connections:
    """The connections of one application. `files` is the process's limit of open files."""

    def __init__(self, files: int) -> None:
        room = max(files, MIN_FILES) - OWN_FILES
        self.backlog = max(1, min(MAX_BACKLOG, room // (4 * OPEN_BACKLOGS)))
        self.most = min(MAX, room - OPEN_BACKLOGS * self.backlog - SPARE)
        self._alive: list[web.RequestHandler] = []
        self._requests: dict[web.RequestHandler, web.Request] = {}
        self._reported = False

    def protocol(self, server: web.Server) -> asyncio.BaseProtocol:
        """Return the protocol for a connection that was just accepted."""
        self._alive = [peer for peer in server.connections if peer.transport and not peer.transport.is_closing()]
        if len(self._alive) >= self.most:
            self.report()
            if not self._give_way() and len(self._alive) >= self.most + SPARE:
                return _Refusing()
        return server()

    def watch(self, open_paths: Collection[str]) -> Middleware:
        """Return a middleware that tracks open requests. Beyond the limit it serves only `open_paths` (routes)."""

        @web.middleware
        async def follow(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._requests[request.protocol] = request
            try:
                if len(self._requests) > self.most and route_of(request) not in open_paths:
                    raise ServeError(f"{len(self._requests)} requests are open: try again in a moment.", 503, 1)
                return await handler(request)
            finally:
                self._requests.pop(request.protocol, None)

        return follow

    def report(self) -> None:
        """Log once that the limit has been reached, because repeated lines could fill the disk."""
        if not self._reported:
            self._reported = True
            log.warning(
                "%d connections are open, the most that the limit of open files allows: each new one closes an idle "
                "one; a higher `ulimit -n` allows up to %d (logged once)",
                len(self._alive),
                MAX,
            )

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle errors of the event loop. Log one line, and no tracebacks, if file descriptors run out."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self.report()
        else:
            loop.default_exception_handler(context)

    async def quiet(self, seconds: float, error: Callable[[], CodespecError]) -> bool:
        """Wait up to `seconds` until no request is open; return False on timeout.

        A request with an incomplete body gets the error at once, even if it arrives during the wait.
        """
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
        """Close the least important connection; return False if all are busy."""
        idle = (peer for peer in self._alive if peer not in self._requests)
        unread = (peer for peer, request in self._requests.items() if not request.content.is_eof())
        for peer in chain(idle, unread):
            if peer.transport is not None and not peer.transport.is_closing():
                peer.transport.abort()  # no graceful close: the peer may not read the data already sent
                return True
        return False


class _Refusing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def open_files() -> int:
    """Return the process's limit of open files. Raise ConfigError if it is too low."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < MIN_FILES:
        fix = f"allow {MIN_FILES} or more with `ulimit -n`"
        raise ConfigError(f"The limit on open files is {limit}, which is too low for the daemon", fix)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections", Connections)


class Runner(web.AppRunner):
    """A runner whose sites accept connections within the limit."""

    @property
    def server(self) -> Any:
        """The factory of a connection's protocol, as sites need it; None before `setup`."""
        server = super().server
        return None if server is None else partial(self.app[CONNECTIONS].protocol, server)


async def listen(runner: web.AppRunner, config: ServeConfig) -> None:
    """Open the sockets and print their addresses. Raise ConfigError if one is in use."""
    try:
        await _start(web.TCPSite(runner, config.host, config.port, backlog=runner.app[CONNECTIONS].backlog))
    except OSError as error:
        raise ConfigError(_why_not(config, error)) from error
    host = f"[{config.host}]" if ":" in config.host else config.host
    port = runner.addresses[0][1]
    print(f"codespec: listening on http://{host}:{port}", flush=True)
    if config.socket == "auto":
        try:
            own_folder()
            await _listen_unix(runner, socket_of(port))
        except ConfigError as error:  # without it, clients request a proof on the port
            print(f"codespec: continues without a socket. {error}", file=sys.stderr, flush=True)
    elif config.socket not in ("", "none"):
        await _listen_unix(runner, named_path(config.socket))


class _UnixSite(web.SockSite):
    """A socket at `path`. When it stops, it removes it, but not one that another daemon has since created there."""

    def __init__(self, runner: web.AppRunner, own: socket.socket, path: Path, backlog: int) -> None:
        super().__init__(runner, own, backlog=backlog)
        self._path, self._made = path, path.lstat()

    async def stop(self) -> None:
        """Remove the socket while it still listens, so that no other daemon replaces it in between."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.lstat(), self._made):
                self._path.unlink()
        await super().stop()


async def _start(site: web.BaseSite) -> None:
    """Start a site with the usual listen backlog; asyncio accepts as many connections at once as a site's."""
    await site.start()
    assert isinstance(site._server, asyncio.Server)
    for own in site._server.sockets:
        with socket.socket(fileno=os.dup(own.fileno())) as same:
            same.listen(MAX_BACKLOG)


async def _listen_unix(runner: web.AppRunner, path: Path) -> None:
    backlog = runner.app[CONNECTIONS].backlog
    try:
        async with claimed(path, backlog) as own:
            await _start(_UnixSite(runner, own, path, backlog))
    except OSError as error:
        why = error.strerror or error  # asyncio's error for a path that is too long has no errno
        raise ConfigError(f"The socket {path} can't be made ({why})", "choose another place with --socket") from error
    print(f"codespec: listening on unix:{path}", flush=True)


def _why_not(config: ServeConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = f"Port {config.port} of {config.host} is in use"
        return f"{where}: stop the other program, or choose another with --port (0 takes a free one)."
    if error.errno == errno.EACCES:
        return f"Port {config.port} needs rights you do not have: choose one from 1024 on with --port."
    return f"The daemon can't listen on {config.host}:{config.port} ({error.strerror}): check --host."


@asynccontextmanager
async def claimed(path: Path, backlog: int) -> AsyncIterator[socket.socket]:
    """Yield a socket that listens at `path`.

    The caller must serve it before the block ends, because other daemons may then probe it. Raise ConfigError if the
    path is in use, and OSError if the socket can't be created.
    """
    folder = path.parent
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # itself the lock: there is no lock file
    try:
        for _ in range(int(TURN_SECONDS / POLL_SECONDS)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)
        else:
            raise ConfigError(f"Another process keeps {folder} locked", "choose another folder for --socket")
        _clear(path)
        yield _bind(path, backlog)
    finally:
        os.close(handle)


def _clear(path: Path) -> None:
    """Remove a stale socket. Raise ConfigError for anything else at the path."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(state.st_mode):
        raise ConfigError(f"{path} exists and is not a socket", "choose another path for --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:  # no listener; any other error means a listener that does not accept
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise ConfigError(f"The socket {path} is in use", "stop the other daemon, or choose another with --socket")


def _bind(path: Path, backlog: int) -> socket.socket:
    """Bind a socket and listen at once: a bound socket that does not listen looks stale."""
    own = socket.socket(socket.AF_UNIX)
    former = os.umask(0o177)
    try:
        own.bind(str(path))
        own.listen(backlog)
    except OSError:
        own.close()
        raise
    finally:
        os.umask(former)
    return own
