"""HTTP/1.1 on one connection, with bounds on everything that a peer sends, and a reader of server-sent events.

Follows no redirect, uses no proxy and decodes no compression.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any

from codespec.bounded_json import parse_json

MOST_HEAD = 1 << 16  # bytes of a reply's status line and headers
MOST_BODY = 2 << 20  # bytes of a JSON reply, or of one event's line
BLOCK = 1 << 16  # bytes read at a time
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")


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
        self.idle = True  # no request is under way, and the peer keeps the connection open
        self.used_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether another request can be sent."""
        return self.idle and not self.writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        """Close at once, which stops the daemon's work on an unfinished reply."""
        self.writer.transport.abort()

    async def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpReply:
        """Send a request and return the reply once its headers are there. Raises OSError or NotHttp.

        The body is not flushed first, because a daemon may refuse a request before it has read all of it.
        """
        self.idle = False
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {headers[name]}" for name in headers)]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        start = await self.read(self._reader.readexactly(len(b"HTTP/1.")))  # so that any other protocol is noticed
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
        """Return the next bytes, b"" at the end of the connection. Raises OSError."""
        return await self.read(self._reader.read(min(most, BLOCK)))

    async def read(self, data: Awaitable[bytes]) -> bytes:
        """Wait for data with the connection's patience. Raises OSError or NotHttp."""
        try:
            async with asyncio.timeout(self._patience):
                return await data
        except asyncio.LimitOverrunError as error:
            raise NotHttp("a line of its reply is too long") from error
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("it closed the connection too early") from error


class HttpReply:
    """A reply whose body is still unread. The names of its headers are in lower case."""

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
        """Return the body as a JSON object, or {} if it is anything else or longer than `most` bytes."""
        data = bytearray()
        async for piece in self.pieces():
            data += piece
            if len(data) > most:
                return {}
        return as_object(data)


class EventReader:
    """Splits a body into server-sent events."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._name = ""

    def feed(self, piece: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the JSON object of each event that the piece completes. Raises NotHttp."""
        self._held += piece
        if b"\n" not in piece:
            if len(self._held) > MOST_BODY:
                raise NotHttp("a line of its reply is too long")
            return
        *lines, self._held = self._held.split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"event":
                self._name = value.decode("utf-8", "replace").strip()
            elif field == b"data":
                name, self._name = self._name, ""
                yield name, as_object(value)


def as_object(data: bytes | bytearray) -> dict[str, Any]:
    """Return a JSON object, or {} if the data is anything else."""
    try:
        value = parse_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(text: bytes, base: int) -> int:
    """Return a length in bytes. Raises NotHttp."""
    digits = rb"[0-9a-fA-F]{1,15}" if base == 16 else rb"[0-9]{1,15}"
    if not re.fullmatch(digits, text):
        raise NotHttp("a length in its reply is not a number")
    return int(text, base)
