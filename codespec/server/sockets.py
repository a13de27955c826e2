"""The daemon's addresses: a port, and a Unix socket beside it, in the user's state folder unless another is named.
Knows sockets and what keeps one from being opened; knows no requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from aiohttp import web

from codespec.errors import ConfigError
from codespec.folders import own_folder, socket_of
from codespec.server.connections import CONNECTIONS, MOST_BACKLOG
from codespec.server.settings import ServeConfig


async def listen(runner: web.AppRunner, config: ServeConfig) -> None:
    """Opens the sockets and says where. Raises ConfigError where one is taken."""
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
    """As `web.TCPSite`, and who comes passes by the connections' bound."""

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
        _let_wait(self._server)


class _Unix(web.BaseSite):
    """The same for a Unix socket, for this user alone; its end leaves a socket that another daemon made there since."""

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
        former = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                factory, str(self._path), backlog=self._backlog
            )
        finally:
            os.umask(former)
        _let_wait(self._server)
        self._made = self._path.stat()

    async def stop(self) -> None:
        """Listens no more, and removes its socket at once: by the end of a drain a newer daemon may have its own."""
        await super().stop()
        with suppress(FileNotFoundError):
            if self._made is not None and os.path.samestat(self._path.stat(), self._made):
                self._path.unlink()


def _let_wait(server: asyncio.Server) -> None:
    """As many may wait to be taken as ever: the loop's number is also how many it takes in one turn, a few."""
    for taken in server.sockets:
        with socket.socket(fileno=os.dup(taken.fileno())) as same:
            same.listen(MOST_BACKLOG)


async def _listen_own(runner: web.AppRunner, port: int) -> None:
    """On the user's own socket, where there can be one: without it, clients ask for a proof on the port."""
    try:
        own_folder()
        await _listen_unix(runner, socket_of(port))
    except ConfigError as error:
        print(f"codespec: goes on without a socket. {error}", file=sys.stderr, flush=True)


async def _listen_unix(runner: web.AppRunner, path: Path) -> None:
    _clear(path)
    try:
        await _Unix(runner, path).start()
    except OSError as error:
        why = error.strerror or error  # asyncio's own word for a path that is too long is no number
        raise ConfigError(f"The socket {path} can't be made ({why}): choose another place with --socket.") from error
    print(f"codespec: listening on unix:{path}", flush=True)


def _clear(path: Path) -> None:
    """Removes a socket that nobody answers on; what else lies there stays."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return  # nothing there; a folder that is missing is told when the socket is made
    if not is_socket:
        raise ConfigError(f"{path} is there and no socket: choose another path for --socket.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"The socket {path} is in use: stop the other daemon, or choose another with --socket.")


def _why_not(config: ServeConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = f"Port {config.port} of {config.host} is in use"
        return f"{where}: stop the other program, or choose another with --port (0 takes a free one)."
    if error.errno == errno.EACCES:
        return f"Port {config.port} needs rights you do not have: choose one from 1024 on with --port."
    return f"{config.host}:{config.port} can't be listened on ({error.strerror}): check --host."
