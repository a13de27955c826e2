"""Connections to the daemon. Nothing is sent on one before the other end is known to be the user's own daemon.

The socket in the user's state folder is known by its owner. Over a port each connection begins with a challenge that
only the user's daemon can answer: a second connection may lead to somebody else. Redirects are refused, and no proxy is
asked.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from codespec import proof
from codespec.bounded_json import parse_json
from codespec.errors import ConfigError
from codespec.user_folders import is_own_socket, socket_of
from codespec_lsp.daemon_client import MOST_LINE, Absent, DaemonError
from codespec_lsp.settings import LOCAL

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

MOST = 32  # requests at once
IDLE_SECONDS = 60.0  # of a connection that is kept; a daemon keeps them longer
TRIES = 3  # a connection may end just before it is used


class NotOwnSocket(Exception):
    """The socket is not the user's own."""


class ConnectionMoved(Exception):
    """The connection is gone, and another one would have to be proven anew."""


class _OwnSocket(aiohttp.UnixConnector):
    """Connections to a socket that is the user's own by its file, and by who listens, where the system can tell."""

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if not (_is_ours(connection.transport) and is_own_socket(Path(self.path))):
            connection.close()
            raise NotOwnSocket
        return connection


class _OneConnection(aiohttp.TCPConnector):
    """Has one connection in its life, to `peer`. Raises ConnectionMoved where a request would go over another."""

    def __init__(self) -> None:
        super().__init__(limit=1, keepalive_timeout=IDLE_SECONDS)
        self.peer: tuple[Any, ...] = ()
        self._only: asyncio.Transport | None = None

    @property
    def alive(self) -> bool:
        """Whether a request may go over its connection."""
        return self._only is not None and not self._only.is_closing()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if self._only is None and connection.transport is not None:
            self._only = connection.transport
            self.peer = connection.transport.get_extra_info("peername")
        elif connection.transport is not self._only:
            connection.close()
            raise ConnectionMoved
        return connection


class _PortConnection:
    """One connection over a port."""

    def __init__(self, seconds: float) -> None:
        self.connector = _OneConnection()
        self.session = _session(self.connector, seconds)

    async def challenge(self, url: str, nonce: bytes, seconds: float) -> Mapping[str, Any]:
        """The reply to a challenge; {} for what is no reply."""
        timeout, data = aiohttp.ClientTimeout(total=seconds), b""
        nonce_body = {"nonce": nonce.hex()}
        async with self.session.post(url, json=nonce_body, allow_redirects=False, timeout=timeout) as reply:
            if reply.status == 200:
                async for piece in reply.content.iter_chunked(proof.MOST_REPLY):
                    data += piece
                    if len(data) > proof.MOST_REPLY:
                        return {}
        try:
            reply_body = parse_json(data)
        except ValueError:
            return {}
        return reply_body if isinstance(reply_body, dict) else {}


class Connections:
    """Of one daemon."""

    def __init__(self, url: str, token: str, seconds: float) -> None:
        self._url, self._token, self._seconds = url, token, seconds
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._room = asyncio.Semaphore(MOST)
        self._own = _session(_OwnSocket(str(own)), seconds) if (own := _own_socket(url)) else None
        self._free: list[_PortConnection] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The reply to a request that only the user's own daemon gets. Leaving early closes the connection. Raises
        DaemonError, aiohttp's errors or TimeoutError."""
        more: dict[str, Any] = {"json": body, "headers": self._headers, "allow_redirects": False}
        async with self._room, AsyncExitStack() as stack:
            reply = await self._by_socket(method, path, more)
            if reply is None:
                reply = await self._by_port(method, path, more, stack)
            await stack.enter_async_context(reply)
            if 300 <= reply.status < 400:
                what = f"The daemon at {self._url} redirects its clients (status {reply.status})"
                raise DaemonError(f"{what}, which is refused: set codespec.url.")
            yield reply

    async def close(self) -> None:
        """Ends all connections."""
        connections, self._free = self._free, []
        for session in (*(connection.session for connection in connections), *([self._own] if self._own else [])):
            await session.close()

    async def _by_socket(self, method: str, path: str, more: dict[str, Any]) -> aiohttp.ClientResponse | None:
        """None where there is no socket that leads to a daemon: nothing was sent."""
        if self._own is None:
            return None
        try:
            return await self._own.request(method, f"http://localhost{path}", **more)
        except (NotOwnSocket, aiohttp.ClientConnectorError):
            return None

    async def _by_port(
        self, method: str, path: str, more: dict[str, Any], stack: AsyncExitStack
    ) -> aiohttp.ClientResponse:
        for _ in range(TRIES):
            connection = await self._take()
            try:
                reply = await connection.session.request(method, self._url + path, **more)
            except ConnectionMoved:
                await connection.session.close()
                continue
            except BaseException:  # cancelling too ends the connection, whose reply would be the next one's
                await connection.session.close()
                raise
            stack.push_async_callback(self._give_back, connection)
            return reply
        raise Absent(f"The daemon at {self._url} ends its connections at once.")

    async def _take(self) -> _PortConnection:
        """A connection that is free, or a new one to whoever proves to be the user's own daemon."""
        while self._free:
            connection = self._free.pop()
            if connection.connector.alive:
                return connection
            await connection.session.close()
        async with AsyncExitStack() as stack:
            connection = _PortConnection(self._seconds)
            stack.push_async_callback(connection.session.close)
            await self._prove(connection)
            stack.pop_all()
        return connection

    async def _give_back(self, connection: _PortConnection) -> None:
        if connection.connector.alive:
            self._free.append(connection)
        else:
            await connection.session.close()

    async def _prove(self, connection: _PortConnection) -> None:
        nonce = proof.new_nonce()
        reply_body = await connection.challenge(self._url + proof.PATH, nonce, self._seconds)
        try:
            keys = await asyncio.to_thread(proof.own_keys, self._token)
        except ConfigError as error:
            raise DaemonError(str(error)) from error
        if not proof.is_proven(reply_body, keys, nonce, connection.connector.peer):
            raise DaemonError(
                f"What answers at {self._url} can't prove that it is your daemon, so it gets no text: restart it if it "
                "is yours (on another machine it needs codespec.tokenFile and an address of its own), or set "
                "codespec.url."
            )


def _session(connector: aiohttp.BaseConnector, seconds: float) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds)
    return aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=MOST_LINE, auto_decompress=False)


def _own_socket(url: str) -> Path | None:
    """Where a daemon on this machine would have its socket."""
    parts = urlsplit(url)
    return socket_of(parts.port or 80) if sys.platform != "win32" and parts.hostname in LOCAL else None


def _is_ours(transport: asyncio.Transport | None) -> bool:
    """Whether a process of this user listens at the other end; True where the system can't tell."""
    if transport is None or not hasattr(socket, "SO_PEERCRED"):
        return transport is not None
    own = transport.get_extra_info("socket")
    _, user, _ = struct.unpack("iII", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return bool(user == os.geteuid())
