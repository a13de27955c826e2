"""HTTP/1.1 connections to the user's own daemon. Nothing is sent to a peer before it has proven to be that daemon.

A socket in the user's state folder is verified by its owner. Each connection to a port begins with a challenge that
only the user's daemon can answer, because a later connection may reach another process.

All data from a peer is bounded. Redirects, proxies and compression are not supported.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from codespec import proof
from codespec.bounded_json import parse_json
from codespec.errors import Absent, DaemonError, Unproven
from codespec.user_folders import is_own_socket, socket_of

CONNECT_SECONDS = 2.0  # to open a connection, and to check a proof
IDLE_SECONDS = 60.0  # how long an idle connection is reused; the daemon keeps it open longer
SESSION_HEADER = "x-session-id"  # routers send requests with the same value to the same replica
LOCAL = ("127.0.0.1", "localhost", "::1")
MOST_HEAD = 1 << 16  # bytes of a reply's status line and headers
MOST_BODY = 2 << 20  # bytes of a JSON reply, or of one event's line
BLOCK = 1 << 16  # bytes read at a time
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")


class ProvenConnections:
    """The connections to the daemon at one address.

    `seconds` limits the time to connect, and the time of a proof. `patience` limits the wait for the next bytes of a
    reply (None: no limit), and `most` the number of concurrent requests. With `by_socket`, a daemon on this machine is
    reached by its socket if it has one. `mend` ends the message about a refused peer. Raises ValueError for a URL that
    is not http.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        mend: str = "check the address",
        *,
        seconds: float = CONNECT_SECONDS,
        patience: float | None = None,
        by_socket: bool = True,
        most: int = 32,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url} is not an http address")
        self.url, self.mend = url, mend
        self._token = token
        self._seconds, self._patience = seconds, patience
        self._host, self._port = parts.hostname, parts.port or 80
        is_here = by_socket and sys.platform != "win32" and self._host in LOCAL
        self._socket = socket_of(self._port) if is_here else None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._room = asyncio.Semaphore(most)
        self._free: list[HttpConnection] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, session: str = ""
    ) -> AsyncIterator[HttpReply]:
        """Send a request to the daemon and yield the reply. Leaving before its end closes the connection.

        `session` is the request's x-session-id ("": none).

        Raises DaemonError (Absent, Unproven), OSError or NotHttp.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, SESSION_HEADER: session} if session else self._headers
        async with self._room:
            connection, reply = await self._exchange(method, path, data, headers)
            try:
                if 300 <= reply.status < 400:
                    what = f"The daemon at {self.url} redirects its clients (status {reply.status})"
                    raise DaemonError(f"{what}, which is refused", self.mend)
                yield reply
            finally:
                if connection.alive:
                    connection.used_at = asyncio.get_running_loop().time()
                    self._free.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        while self._free:
            self._free.pop().close()

    async def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[HttpConnection, HttpReply]:
        """Send a request. If the daemon has just closed the idle connection, try another one."""
        while True:
            connection = self._take()
            reused = connection is not None
            connection = connection or await self._open()
            try:
                return connection, await connection.request(method, path, data, headers)
            except BaseException as error:  # even if cancelled: the next request must not get this one's reply
                connection.close()
                if not (reused and isinstance(error, ConnectionError)):
                    raise

    def _take(self) -> HttpConnection | None:
        """Return an idle connection, or None."""
        least = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._free:
            connection = self._free.pop()
            if connection.alive and connection.used_at > least:
                return connection
            connection.close()
        return None

    async def _open(self) -> HttpConnection:
        """Open a connection to the user's own daemon."""
        own = await self._open_socket()
        if own is not None:
            return own
        try:
            async with asyncio.timeout(self._seconds):
                streams = await asyncio.open_connection(self._host, self._port, limit=BLOCK)
        except TimeoutError:
            raise
        except OSError as error:
            raise Absent(f"No daemon answers at {self.url} ({type(error).__name__})", "start one") from error
        host = f"[{self._host}]" if ":" in self._host else self._host
        connection = HttpConnection(*streams, f"{host}:{self._port}", self._patience)
        try:
            await self._prove(connection)
        except BaseException:  # even if cancelled
            connection.close()
            raise
        return connection

    async def _open_socket(self) -> HttpConnection | None:
        """Connect to the daemon's socket. Return None if there is no socket, or if it may belong to another user."""
        if self._socket is None:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                streams = await asyncio.open_unix_connection(self._socket, limit=BLOCK)
        except OSError:
            return None
        connection = HttpConnection(*streams, "localhost", self._patience)
        if is_ours(streams[1].get_extra_info("socket")) and is_own_socket(Path(self._socket)):
            return connection
        connection.close()
        return None

    async def _prove(self, connection: HttpConnection) -> None:
        """Check the daemon's proof of its identity. Raises Unproven, ConfigError, OSError or NotHttp."""
        nonce = proof.new_nonce()
        async with asyncio.timeout(self._seconds):
            body = proof.challenge(nonce, self._token)
            reply = await connection.request("POST", proof.PATH, json.dumps(body).encode(), {})
            answer = await reply.json_object(proof.MOST_REPLY) if reply.status == 200 else {}
        keys = await asyncio.to_thread(proof.own_keys, self._token)
        if not proof.is_proven(answer, keys, nonce, connection.writer.get_extra_info("peername")):
            raise Unproven(
                f"The program at {self.url} can't prove that it is your daemon, so it gets no text",
                "restart it if it is yours (on another machine it needs its token here and an address of its own), or "
                f"{self.mend}",
                locked=not self._token and answer.get("by_token") is not None,
            )


def is_ours(connection: socket.socket) -> bool:
    """Return whether a process of this user listens at the other end of a Unix socket.

    Return True if the system does not report the user.
    """
    return peer_user(connection) in (None, os.geteuid())


def peer_user(connection: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket, or None if the system does not report it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("iII")))
    return int(user)


class NotHttp(Exception):
    """Raised if a peer's bytes are not HTTP, or exceed a limit."""


class HttpConnection:
    """One connection; it serves one request at a time.

    `patience` is the number of seconds to wait for the next bytes of a reply (None: no limit).
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, patience: float | None
    ) -> None:
        self.writer = writer
        self._reader = reader
        self._host = host
        self._patience = patience
        self.idle = True  # no request is in progress, and the peer keeps the connection open
        self.used_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether another request can be sent."""
        return self.idle and not self.writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        """Close at once, which stops the daemon's work on an unfinished reply."""
        self.writer.transport.abort()

    async def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpReply:
        """Send a request and return the reply once its headers have arrived. Raises OSError or NotHttp.

        The body is not flushed first, because a daemon may refuse a request before it has read all of it.
        """
        self.idle = False
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {headers[name]}" for name in headers)]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        start = await self.read(self._reader.readexactly(len(b"HTTP/1.")))  # detects other protocols
        status = _STATUS.fullmatch(start + await self.line()) if start == b"HTTP/1." else None
        if status is None:
            raise NotHttp("its reply is not HTTP/1")
        fields, size = dict[str, str](), 0
        while line := await self.line():
            size += len(line)
            if size > MOST_HEAD:
                raise NotHttp("its headers are too long")
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.strip().lower()] = value.strip()
        return HttpReply(self, int(status[2]), fields, keeps=status[1] == b"1")

    async def line(self) -> bytes:
        """Return the next line without its end. Raises OSError or NotHttp."""
        return (await self.read(self._reader.readuntil(b"\r\n")))[:-2]

    async def some(self, most: int) -> bytes:
        """Return the next bytes, or b"" at the end of the connection. Raises OSError."""
        return await self.read(self._reader.read(min(most, BLOCK)))

    async def read(self, data: Awaitable[bytes]) -> bytes:
        """Wait for data, at most for the connection's patience. Raises OSError or NotHttp."""
        try:
            async with asyncio.timeout(self._patience):
                return await data
        except asyncio.LimitOverrunError as error:
            raise NotHttp("a line of its reply is too long") from error
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("it closed the connection too early") from error


class HttpReply:
    """A reply with an unread body. Header names are in lower case."""

    def __init__(self, connection: HttpConnection, status: int, headers: Mapping[str, str], *, keeps: bool) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._keeps = keeps and headers.get("connection", "").lower() != "close"

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises OSError or NotHttp."""
        connection, length = self._connection, self.headers.get("content-length")
        chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not chunked and length is None:
            while piece := await connection.some(BLOCK):
                yield piece
            return
        left = _number(await connection.line(), 16) if chunked else _number(str(length).encode("latin-1"), 10)
        while left:
            piece = await connection.some(left)
            if not piece:
                raise ConnectionResetError("it closed the connection too early")
            left -= len(piece)
            yield piece
            if chunked and not left:
                await connection.line()
                left = _number(await connection.line(), 16)
        if chunked:
            await connection.line()  # aiohttp sends no trailers
        connection.idle = self._keeps

    async def json_object(self, most: int = MOST_BODY) -> dict[str, Any]:
        """Return the body as a JSON object, or {} if it is not one or is longer than `most` bytes."""
        data = bytearray()
        async for piece in self.pieces():
            data += piece
            if len(data) > most:
                return {}
        return as_object(data)


class EventReader:
    """Splits a body into server-sent events, as the HTML standard defines them. `most` limits the bytes of an event."""

    def __init__(self, most: int = MOST_BODY) -> None:
        self._most = most
        self._held = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._begins = True

    @property
    def is_half(self) -> bool:
        """Whether the body so far ends inside an event."""
        return bool(self._held or self._data)

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """Return the name and the data of each event that the piece completes. Raises NotHttp.

        Events without data, which proxies send to keep a connection open, are dropped.
        """
        self._held += piece
        events: list[tuple[str, bytes]] = []
        if b"\n" in piece:
            *lines, self._held = self._held.split(b"\n")
            events = [event for line in lines if (event := self._read(bytes(line.removesuffix(b"\r"))))]
        if len(self._held) + sum(map(len, self._data)) > self._most:
            raise NotHttp("an event of its reply is too long")
        return events

    def _read(self, line: bytes) -> tuple[str, bytes] | None:
        """Return the event that a line completes, or None."""
        if self._begins:
            self._begins, line = False, line.removeprefix(codecs.BOM_UTF8)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value)
        elif not line:
            name, data = self._name, self._data
            self._name, self._data = "", []
            return (name, b"\n".join(data)) if any(data) else None
        return None


def as_object(data: bytes | bytearray) -> dict[str, Any]:
    """Return a JSON object, or {} if the data is anything else."""
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(text: bytes, base: int) -> int:
    """Parse a length in bytes. Raises NotHttp."""
    digits = rb"[0-9a-fA-F]{1,15}" if base == 16 else rb"[0-9]{1,15}"
    if not re.fullmatch(digits, text):
        raise NotHttp("a length in its reply is not a number")
    return int(text, base)
