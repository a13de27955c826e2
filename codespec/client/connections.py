"""HTTP/1.1 connections on which no request is sent before the peer has proved that it is the user's own daemon.

A Unix socket in the user's state folder is trusted if the user owns the socket. Every connection to a TCP port begins
with a challenge that only the user's daemon can answer, because another process may have taken the port.

The client limits the size of all data from a peer. The client does not support redirects, proxies or compression.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

from codespec.api.limits import is_loopback
from codespec.client import proof
from codespec.errors import Absent, DaemonError, Unproven
from codespec.files import parse_json
from codespec.user_folders import is_own_socket, socket_of

CONNECT_TIMEOUT_S = 2.0  # to open a connection, and to check a proof
IDLE_TIMEOUT_S = 60.0  # how long an idle connection is reused; the daemon keeps it open longer
SESSION_HEADER = "x-session-id"  # routers send requests with the same value to the same replica
MAX_HEAD = 1 << 16  # bytes of a reply's status line and headers
MAX_BODY = 2 << 20  # bytes of a JSON reply, or of one event's line
BLOCK = 1 << 16  # bytes read at a time


class ProvenConnections:
    """A pool of connections to the daemon at one URL. Raises ValueError if the URL's scheme is not http."""

    def __init__(
        self,
        url: str,
        token: str = "",
        fix: str = "check the address",  # what the user should do if the peer is rejected
        *,
        seconds: float = CONNECT_TIMEOUT_S,  # limit on the time to connect, and on the time to check a proof
        patience: float | None = None,  # limit in seconds on the wait for the next bytes of a reply
        by_socket: bool = True,  # whether to prefer the Unix socket of a daemon on this machine to TCP
        most: int = 32,  # concurrent requests
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url} is not a valid http:// URL")
        self.url, self.fix = url, fix
        self._token = token
        self._seconds, self._patience = seconds, patience
        self._host, self._port = parts.hostname, parts.port or 80
        is_here = by_socket and sys.platform != "win32" and is_loopback(self._host)
        self._socket = socket_of(self._port) if is_here else None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._room = asyncio.Semaphore(most)
        self._free: list[HttpConnection] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, session: str = ""
    ) -> AsyncIterator[HttpReply]:
        """Send a request and yield the reply. Exiting the context before the end of the reply closes the connection.

        `session` is the value of the x-session-id header ("": no header). Raises DaemonError, OSError or NotHttp.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, SESSION_HEADER: session} if session else self._headers
        async with self._room:
            reply = await self._exchange(method, path, data, headers)
            connection = reply.connection
            try:
                if 300 <= reply.status < 400:
                    raise DaemonError(f"{self.url} sent a redirect (HTTP {reply.status}), which is refused", self.fix)
                yield reply
            finally:
                if connection.alive:
                    connection.used_at = asyncio.get_running_loop().time()
                    self._free.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()

    async def _exchange(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> HttpReply:
        """Send a request, on an idle connection if possible, and retry if the daemon has closed that connection."""
        while True:
            connection = self._take()
            reused = connection is not None
            connection = connection or await self._open()
            try:
                return await connection.request(method, path, data, headers)
            except BaseException as error:  # even if cancelled: the next request must not get this one's reply
                connection.close()
                if not (reused and isinstance(error, ConnectionError)):
                    raise

    def _take(self) -> HttpConnection | None:
        least = asyncio.get_running_loop().time() - IDLE_TIMEOUT_S
        while self._free:
            connection = self._free.pop()
            if connection.alive and connection.used_at > least:
                return connection
            connection.close()
        return None

    async def _open(self) -> HttpConnection:
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
        """Connect to the daemon's Unix socket. Return None if the socket is missing or may belong to another user."""
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
            answer = await reply.json_object(proof.MAX_REPLY) if reply.status == 200 else {}
        keys = await asyncio.to_thread(proof.own_keys, self._token)
        if not proof.is_proven(answer, keys, nonce, connection.writer.get_extra_info("peername")):
            raise Unproven(
                f"The program at {self.url} can't prove that it is your daemon, so no text is sent to it",
                "restart the daemon (for a daemon on another machine, set its token and use its own address, without "
                f"a tunnel), or {self.fix}",
                locked=not self._token and answer.get("by_token") is not None,
            )


def is_ours(connection: socket.socket) -> bool:
    """Return False if the process at the other end of a Unix socket is known to belong to another user."""
    return peer_user(connection) in (None, os.geteuid())


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of a Unix socket's peer, or None if the system does not report the id."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("iII")))
    return int(user)


class NotHttp(Exception):
    """Raised if a reply is not valid HTTP or exceeds a size limit."""


class HttpConnection:
    """A connection for one request at a time. `patience` limits the wait for each read, in seconds (None: no limit)."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, patience: float | None
    ) -> None:
        self.writer = writer
        self._reader = reader
        self._host = host
        self._patience = patience
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self.used_at = 0.0

    @property
    def alive(self) -> bool:
        return self._http.our_state is h11.IDLE and not self.writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        self.writer.transport.abort()  # a graceful close would let the daemon finish an unwanted reply

    async def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpReply:
        """Send a request and return the reply once its headers have arrived. Raises OSError or NotHttp."""
        sized = {} if body is None else {"Content-Type": "application/json", "Content-Length": str(len(body))}
        fields = [*{"Host": self._host, **headers, **sized}.items()]
        parts = (h11.Request(method=method, target=path, headers=fields), h11.Data(body or b""), h11.EndOfMessage())
        # Without waiting until all is sent: a daemon may refuse a request without reading the whole body.
        self.writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        while not isinstance(head := await self.next(), h11.Response):
            pass  # an informational reply
        return HttpReply(self, head.status_code, {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers})

    async def next(self) -> Any:
        data = None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._patience):
                    data = await self._reader.read(BLOCK)
                self._http.receive_data(data)
                if self._http.their_state is h11.SEND_RESPONSE:
                    begun = self._http.trailing_data[0][:7]
                    if not b"HTTP/1.".startswith(begun):  # h11 would wait for a blank line that may never come
                        raise NotHttp("the reply is not HTTP/1")
        except h11.RemoteProtocolError as error:
            if data == b"":
                raise ConnectionResetError("the connection was closed before the reply was complete") from error
            raise NotHttp(f"the reply is not valid HTTP: {str(error)[:80]}") from error
        if self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return event


@dataclass(slots=True)
class HttpReply:
    """An HTTP reply whose body has not been read. Header names are in lower case."""

    connection: HttpConnection
    status: int
    headers: Mapping[str, str]

    async def pieces(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self.connection.next(), h11.Data):
            yield bytes(event.data)

    async def json_object(self, most: int = MAX_BODY) -> dict[str, Any]:
        """Return the body as a JSON object, or {} if the body is another value or is longer than `most` bytes."""
        data = bytearray()
        async for piece in self.pieces():
            data += piece
            if len(data) > most:
                return {}
        return as_object(data)


class EventReader:
    """A parser of server-sent events, as the HTML standard defines them. `most` limits an event's size in bytes."""

    def __init__(self, most: int = MAX_BODY) -> None:
        self._most = most
        self._held = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._begins = True

    @property
    def is_half(self) -> bool:
        """Whether the data received so far ends inside an event."""
        return bool(self._held or self._data)

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """Return the name and data of each event that the piece completes. Raises NotHttp if an event is too long."""
        self._held += piece
        events: list[tuple[str, bytes]] = []
        if b"\n" in piece:
            *lines, self._held = self._held.split(b"\n")
            events = [event for line in lines if (event := self._read(bytes(line.removesuffix(b"\r"))))]
        if len(self._held) + sum(map(len, self._data)) > self._most:
            raise NotHttp("an event of the reply is too long")
        return events

    def _read(self, line: bytes) -> tuple[str, bytes] | None:
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
            return (name, b"\n".join(data)) if any(data) else None  # proxies send empty events as keep-alives
        return None


def as_object(data: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object. Return {} if the data is invalid JSON or another JSON value."""
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
