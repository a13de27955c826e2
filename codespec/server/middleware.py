"""Middleware for all requests: access log, error replies, connection limits, access control and client scopes.

Without a token or keys, the daemon answers only requests from its own machine that use a local host name. Requests from
web pages of other origins are refused.

The limit on open files determines the maximum number of connections. At the maximum, a new connection replaces the
oldest connection without a request, or else the oldest one whose request is incomplete. If all connections are busy, a
few more are accepted, and get only an error or a health reply.

Data cached for one client is never used for another, because cached token counts and timings would reveal its text. A
client is identified by its user and its API key. The system reports the user of a Unix socket's peer and, on Linux, of
a TCP connection from this machine. If neither key nor user is known, each connection counts as a separate client.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import ipaddress
import os
import re
import resource
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.api.limits import is_loopback
from codespec.client.connections import peer_user
from codespec.errors import CodespecError, ConfigError, ServeError
from codespec.server.keys_file import OWNER, Account, Keyring
from codespec.server.logs import log, log_failure
from codespec.server.wire import Refused, error_reply, route_of

HTTP_ERRORS = {404: ("path", "docs/clients.md lists the endpoints"), 405: ("method", "use a method that Allow lists")}
OWN_FILES = 64  # file descriptors for models, libraries, devices, learned state
MIN_FILES = 128  # a lower limit leaves no room for connections
MAX = 1024  # connections, because they also take memory
MAX_BACKLOG = 128  # connections accepted per address in one iteration of the event loop
OPEN_BACKLOGS = 6  # for connections being accepted or closed: two backlogs for each of up to three addresses
SPARE = 8  # connections accepted beyond the limit
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ALIVE = "/health"  # without a token, its reply says only that the process is alive
METRICS = "/metrics"
KEY_HEADERS = ("X-Api-Key", "Api-Key")  # in addition to Authorization
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # Linux's tables of TCP connections
UNNAMED = 65534  # the id of every user of another container, so it does not identify a client
MAPPED = f"(?:0{{16}}{'FFFF0000' if sys.byteorder == 'little' else '0000FFFF'})?"  # ::ffff: before an IPv4 address
End = tuple[str, int]  # address and port


@web.middleware
async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
    begun, status = time.perf_counter(), 499
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        ms = (time.perf_counter() - begun) * 1000
        log.info("%s %s %d %.0f ms", request.method[:8], route_of(request), status, ms)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except CodespecError as error:
        return error_reply(error)
    except web.HTTPException as error:
        field, fix = HTTP_ERRORS.get(error.status, ("request", "correct it"))
        response = error_reply(Refused(f"{field} is refused ({error.reason}): {fix}.", field, error.status))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionResetError:
        raise
    except Exception as error:  # a bug: its message, which may contain source text, is neither sent nor logged
        log_failure(f"{route_of(request)} failed", error)
        return error_reply(
            ServeError(f"The daemon failed on this request ({type(error).__name__}): please report it.", 500)
        )


class Connections:
    """The open connections of one application. Raises ConfigError if the process may open too few files."""

    def __init__(self) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = 1 << 20 if files == resource.RLIM_INFINITY else files
        if files < MIN_FILES:
            fix = f"allow {MIN_FILES} or more with `ulimit -n`"
            raise ConfigError(f"The limit on open files is {files}, which is too low for the daemon", fix)
        room = files - OWN_FILES
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
        """Return a middleware that tracks open requests, and refuses those over the limit except for `open_paths`."""

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
        """Log that the connection limit was reached, but only once, because repeated lines could fill the disk."""
        if not self._reported:
            self._reported = True
            log.warning(
                "%d connections are open, the most that the limit on open files allows: each new one closes an idle "
                "one; a higher `ulimit -n` allows up to %d (logged once)",
                len(self._alive),
                MAX,
            )

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of the event loop. Log one line without a traceback if file descriptors run out."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self.report()
        else:
            loop.default_exception_handler(context)

    async def quiet(self, seconds: float, error: Callable[[], CodespecError]) -> bool:
        """Wait until no request is open; send the error to requests with incomplete bodies. Return False on timeout."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._requests:
            for request in self._requests.values():
                if not request.content.is_eof() and request.content.exception() is None:
                    request.content.set_exception(error())
            if loop.time() >= end:
                return False
            await asyncio.sleep(0.02)
        return True

    def _give_way(self) -> bool:
        """Close the oldest connection without a complete request; return False if there is none."""
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


CONNECTIONS: web.AppKey[Connections] = web.AppKey("connections", Connections)


@dataclass(frozen=True, slots=True)
class Access:
    """The accepted credentials. Without `token` and `keyring`, only /metrics can require a token."""

    token: str = ""
    metrics_token: str = ""
    keyring: Keyring | None = None

    @property
    def is_open(self) -> bool:
        return not self.token and self.keyring is None

    def identify(self, request: web.Request) -> Account | None:
        """Return a request's account or None. Raise Refused if the request lacks a token that the route accepts."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token, route = token.strip() if scheme.lower() == "bearer" else "", route_of(request)
        if _is_same(token, self.token):
            return self.keyring.owner if self.keyring else None
        if route == METRICS and _is_same(token, self.metrics_token):
            return None
        if self.keyring is not None and (account := self.keyring.find(token)):
            if route == METRICS:
                raise Refused(f"{route} needs the owner's token: a key does not open it.", "Authorization", 403)
            return account
        if not self.is_open or (route == METRICS and self.metrics_token):
            raise Refused("Authorization lacks the daemon's token: send it as a Bearer token.", "Authorization", 401)
        return None


ACCOUNT: web.RequestKey[Account] = web.RequestKey("account", Account)


def own_key(request: web.Request) -> str:
    """Return the name of a request's key, or "" for the owner or if the daemon has no keys."""
    account: Account | None = request.get(ACCOUNT)
    return "" if account is None or account.name == OWNER else account.name


def guard(host: str, access: Access, open_paths: Collection[str] = ()) -> Middleware:
    """Return a middleware that refuses foreign hosts and origins, and requires a token except for `open_paths`."""
    names = {*LOCAL_NAMES, host.lower(), f"[{host}]".lower()} if is_loopback(host) else None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if names is not None:
            _check_host(request, names)
        _check_origin(request)
        route = route_of(request)
        if route == ALIVE and not access.is_open and "Authorization" not in request.headers:
            return web.json_response({"status": "alive"})
        account = None if route in open_paths else access.identify(request)
        if account is not None:
            request[ACCOUNT] = account
            account.requests += request.method == "POST"
        return await handler(request)

    return check


def _check_host(request: web.Request, names: set[str]) -> None:
    """Refuse foreign host names, because in a DNS rebinding attack the browser sends the attacker's host name."""
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in names:
        raise Refused("Host is refused (only localhost is accepted): use 127.0.0.1 in the address.", "Host", 403)


def _check_origin(request: web.Request) -> None:
    origin, host = request.headers.get("Origin"), request.headers.get("Host", "").lower()
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise Refused("Origin is refused (a page of another site): use an editor or a terminal.", "Origin", 403)


def _is_same(token: str, expected: str) -> bool:
    """Compare tokens in constant time. Return False if `expected` is empty."""
    return bool(expected) and hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode())


Peer = tuple[int | None, str]  # the user id of a connection, if known, and a unique name for the connection


class Scopes:
    """Determines the scope of each request. API keys are hashed, with a secret that is random for each process."""

    def __init__(self, tables: Sequence[Path] = TABLES) -> None:
        self._tables = tables
        self._secret = secrets.token_bytes(32)
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, Peer] = WeakKeyDictionary()
        self._numbers = count()
        self._lock = asyncio.Lock()  # keeps requests in order, because a newer request for a document ends older ones

    async def of(self, request: web.Request) -> str:
        """Return the scope of a request: a string that identifies the client without revealing any key."""
        key, transport = key_of(request.headers), request.transport
        if transport is None:
            raise ConnectionResetError("the client has disconnected")
        async with self._lock:
            if transport not in self._peers:
                user = await self._find_user(transport)
                self._peers[transport] = None if user == UNNAMED else user, f"connection {next(self._numbers)}"
            user, name = self._peers[transport]
        if not key:
            return name if user is None else f"user {user}"
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).hexdigest()
        return f"key {digest}" if user is None else f"key {digest} of user {user}"

    async def _find_user(self, transport: asyncio.BaseTransport) -> int | None:
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            user = peer_user(connection)
            return os.getuid() if user is None else user  # the socket's mode lets no other user connect
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        if not all(ends):
            return None
        peer, own = ((host.removeprefix("::ffff:"), port) for host, port, *_ in ends)
        if not is_loopback(own[0]):
            return None
        return await asyncio.to_thread(self._look_up, peer, own)  # in a thread, because the tables may be long

    def _look_up(self, peer: End, own: End) -> int | None:
        for table in self._tables:
            with suppress(OSError):  # not Linux, or a kernel without this table
                if (user := find_user(table.read_text(encoding="ascii"), peer, own)) is not None:
                    return user
        return None


def key_of(headers: Mapping[str, str]) -> str:
    """Return all API keys in the headers, joined by newlines, or "" if there are none."""
    _, _, token = headers.get("Authorization", "").strip().partition(" ")
    keys = [token.strip(), *(headers.get(name, "").strip() for name in KEY_HEADERS)]
    return "\n".join(keys) if any(keys) else ""


def find_user(table: str, peer: End, own: End) -> int | None:
    """Look up a peer's socket in one of Linux's TCP tables, and return the id of the socket's user, or None."""
    row = re.search(rf" {MAPPED}{_hex_address(*peer)} {MAPPED}{_hex_address(*own)} (.*)", table)
    if row is None:
        return None
    _, _, _, _, user, _, inode = row[1].split(None, 7)[:7]
    return None if inode == "0" else int(user)


def _hex_address(address: str, port: int) -> str:
    """Return an address as in Linux's TCP tables: 32-bit hexadecimal words in native byte order, and the port."""
    packed = ipaddress.ip_address(address).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


ACCESS: web.AppKey[Access] = web.AppKey("access", Access)
SCOPES: web.AppKey[Scopes] = web.AppKey("scopes", Scopes)
