"""The daemon's TCP and Unix sockets, and the endpoint that proves the daemon's identity.

A stale Unix socket is replaced; a socket in use is not. Daemons that start with the same socket path take turns, so
that no daemon removes the socket that another daemon has just created.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from codespec.api.config import ServeConfig
from codespec.client import proof
from codespec.errors import ConfigError, RequestError
from codespec.server.middleware import ACCESS, CONNECTIONS, MAX_BACKLOG, Access
from codespec.server.wire import Refused, read_fields
from codespec.user_folders import named_path, own_folder, socket_of

MAX_PROOF_BODY = 256  # bytes
PROOF_KEYS: web.AppKey[proof.Keys] = web.AppKey("keys", proof.Keys)
POLL_SECONDS = 0.02
PROBE_SECONDS = 1.0  # for the process that holds a Unix socket to accept a connection
TURN_SECONDS = 5.0  # to wait for other daemons that create sockets in the same folder


class Runner(web.AppRunner):
    """An application runner that applies the connection limit to all its sites."""

    @property
    def server(self) -> Any:
        """The function with which sites create the protocol of each connection; None before `setup`."""
        server = super().server
        return None if server is None else partial(self.app[CONNECTIONS].protocol, server)


async def listen(runner: web.AppRunner, config: ServeConfig) -> None:
    """Open the sockets and print their addresses. Raise ConfigError if the daemon can't listen at an address."""
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
        except ConfigError as error:  # clients can use the port instead, and request a proof there
            print(f"codespec: continues without a socket. {error}", file=sys.stderr, flush=True)
    elif config.socket not in ("", "none"):
        await _listen_unix(runner, named_path(config.socket))


class _UnixSite(web.SockSite):
    """A site on a Unix socket, which is removed on stop unless another daemon has replaced the socket."""

    def __init__(self, runner: web.AppRunner, own: socket.socket, path: Path, backlog: int) -> None:
        super().__init__(runner, own, backlog=backlog)
        self._path, self._made = path, path.lstat()

    async def stop(self) -> None:
        """Remove the socket while it still listens, so that no other daemon can replace it before its removal."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.lstat(), self._made):
                self._path.unlink()
        await super().stop()


async def _start(site: web.BaseSite) -> None:
    """Start a site, then raise its listen backlog, but not the number of connections that asyncio accepts at once."""
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
        raise ConfigError(f"The socket {path} can't be created ({why})", "choose another path with --socket") from error
    print(f"codespec: listening on unix:{path}", flush=True)


def _why_not(config: ServeConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = f"Port {config.port} of {config.host} is in use"
        return f"{where}: stop the other program, or choose another port with --port (0: any free one)."
    if error.errno == errno.EACCES:
        return f"Port {config.port} needs more privileges than you have: choose 1024 or higher with --port."
    return f"The daemon can't listen on {config.host}:{config.port} ({error.strerror}): check --host."


@asynccontextmanager
async def claimed(path: Path, backlog: int) -> AsyncIterator[socket.socket]:
    """Yield a listening socket, which the caller must serve before others probe it. Raise ConfigError or OSError."""
    folder = path.parent
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the folder itself is the lock file
    try:
        for _ in range(int(TURN_SECONDS / POLL_SECONDS)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)
        else:
            raise ConfigError(f"Another process has locked {folder}", "choose another folder for --socket")
        _clear(path)
        yield _bind(path, backlog)
    finally:
        os.close(handle)


def _clear(path: Path) -> None:
    """Remove a stale socket, or raise ConfigError if anything else exists at the path."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(state.st_mode):
        raise ConfigError(f"{path} exists and is not a socket", "choose another path for --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        if probe.connect_ex(str(path)) == errno.ECONNREFUSED:  # otherwise, a process listens, even if it is busy
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"The socket {path} is in use", "stop the other daemon, or choose another path with --socket")


def _bind(path: Path, backlog: int) -> socket.socket:
    """Create a socket and listen at once, because a bound socket that does not listen looks stale."""
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


async def prove(request: web.Request) -> web.Response:
    """Reply to a nonce with the daemon's proof of identity for the local address of the connection."""
    if request.content_length is None or request.content_length > MAX_PROOF_BODY:
        raise Refused(f"The body must have at most {MAX_PROOF_BODY} bytes: send only a nonce.", "body", 413)
    with await read_fields(request) as fields:
        fields.only(("nonce", "key"))
        nonce = fields.text("nonce", most=2 * proof.NONCE_BYTES)
        key_id = fields.text("key", "", most=proof.KEY_ID)
    if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", nonce):
        raise RequestError(f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.", "nonce")
    at = proof.address_of(None if request.transport is None else request.transport.get_extra_info("sockname"))
    keys, keyring = request.app[PROOF_KEYS], request.app.get(ACCESS, Access()).keyring
    if keyring is not None and (key_hash := keyring.hash_by_id.get(key_id)):
        keys = replace(keys, key=proof.from_key_hash(key_hash))
    return web.json_response(proof.answer(keys, bytes.fromhex(nonce), at))


def proof_keys(token: str) -> proof.Keys:
    """Return the keys for the identity proof. If the user's secret can't be used, print why and use only the token."""
    try:
        return proof.own_keys(token)
    except ConfigError as error:
        print(f"codespec: editors can't verify this daemon. {error}", file=sys.stderr, flush=True)
        return proof.Keys(None, proof.stretched(token))


PROOF_ROUTES = [web.post(proof.PATH, prove)]
PROOF_PATHS = frozenset({proof.PATH})  # need no token: clients request the proof before they send it
