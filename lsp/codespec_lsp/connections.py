"""Connections to the daemon. No request is sent before the other end is proven to be the user's own daemon.

A socket in the user's state folder is verified by its owner. Each connection to a port begins with a challenge that
only the user's daemon can answer, because a later connection may reach another process. Redirects are refused, and no
proxy is used.
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

MOST = 32  # concurrent requests
IDLE_SECONDS = 60.0  # for which an idle connection is kept; a daemon keeps it longer
TRIES = 3  # because a connection may close just before it is used


class NotOwnSocket(Exception):
    """Raised if the socket is not the user's own."""


class ConnectionMoved(Exception):
    """Raised if the connection is gone; a new one needs a new proof."""


class _OwnSocket(aiohttp.UnixConnector):
    """Connects only to a socket whose file, and whose listener if the system reports it, belong to the user."""

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if not (_is_ours(connection.transport) and is_own_socket(Path(self.path))):
            connection.close()
            raise NotOwnSocket
        return connection


class _OneConnection(aiohttp.TCPConnector):
    """A connector for a single connection, to `peer`. Raises ConnectionMoved if a request would open another one."""

    def __init__(self) -> None:
        super().__init__(limit=1, keepalive_timeout=IDLE_SECONDS)
        self.peer: tuple[Any, ...] = ()
        self._only: asyncio.Transport | None = None

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
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
    """One TCP connection."""

    def __init__(self, seconds: float) -> None:
        self.connector = _OneConnection()
        self.session = _session(self.connector, seconds)

    async def challenge(self, url: str, nonce: bytes, seconds: float) -> Mapping[str, Any]:
        """Send a challenge and return the reply, or {} if it is invalid."""
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
    """The connections to one daemon."""

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
        """Send a request to the user's own daemon and yield the reply. Leaving early closes the connection.

        Raises DaemonError, aiohttp's errors or TimeoutError.
        """
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
        """Close all connections."""
        connections, self._free = self._free, []
        for session in (*(connection.session for connection in connections), *([self._own] if self._own else [])):
            await session.close()

    async def _by_socket(self, method: str, path: str, more: dict[str, Any]) -> aiohttp.ClientResponse | None:
        """Send a request over the socket. Returns None, with nothing sent, if no socket leads to a daemon."""
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
            except BaseException:  # even if cancelled: otherwise the next request would get this one's reply
                await connection.session.close()
                raise
            stack.push_async_callback(self._give_back, connection)
            return reply
        raise Absent(f"The daemon at {self._url} ends its connections at once.")

    async def _take(self) -> _PortConnection:
        """Return a free connection, or open a new one and have the daemon prove its identity."""
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
    """Return the path of the socket that a daemon on this machine would use, or None."""
    parts = urlsplit(url)
    return socket_of(parts.port or 80) if sys.platform != "win32" and parts.hostname in LOCAL else None


def _is_ours(transport: asyncio.Transport | None) -> bool:
    """Return whether a process of this user listens at the other end; True if the system can't tell."""
    if transport is None or not hasattr(socket, "SO_PEERCRED"):
        return transport is not None
    own = transport.get_extra_info("socket")
    _, user, _ = struct.unpack("iII", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return bool(user == os.geteuid())
