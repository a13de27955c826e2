"""Replies of hostile and careless servers, and which connections serve another request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from codespec.client.connections import MAX_BODY, EventReader, HttpConnection, NotHttp

SECONDS = 60.0
EVENTS = b'event: text\r\ndata: {"text": "\xc3\xa9"}\r\n\r\nevent: done\ndata:{"choice": 0}\n\ndata: no JSON\n\n'
READ = [("text", b'{"text": "\xc3\xa9"}'), ("done", b'{"choice": 0}'), ("", b"no JSON")]


def against(replies: Sequence[bytes], scenario: Callable[[HttpConnection], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario against a server that sends one of the replies for each request, then closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        streams = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 16)
        connection = HttpConnection(*streams, "localhost", None)
        async with server, asyncio.timeout(SECONDS):
            try:
                await scenario(connection)
            finally:
                connection.close()

    asyncio.run(run())


async def body_of(connection: HttpConnection) -> bytes:
    reply = await connection.request("GET", "/", None, {})
    return b"".join([piece async for piece in reply.pieces()])


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTT or any other protocol",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * (1 << 18) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * (1 << 16) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n1\r\n0\r\n\r\n",
    ],
    ids=lambda reply: repr(reply[-30:]),
)
def test_what_is_not_http_is_refused(reply: bytes) -> None:
    async def scenario(connection: HttpConnection) -> None:
        with pytest.raises(NotHttp):
            await body_of(connection)
        assert not connection.alive

    against([reply], scenario)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTT",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1234",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n1234",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n",
    ],
)
def test_a_reply_that_ends_early_is_a_lost_connection(reply: bytes) -> None:
    async def scenario(connection: HttpConnection) -> None:
        with pytest.raises(ConnectionError):
            await body_of(connection)
        assert not connection.alive

    against([reply], scenario)


def test_a_connection_serves_the_next_request_once_a_reply_is_read() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"
    sized = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    async def scenario(connection: HttpConnection) -> None:
        assert [await body_of(connection) for _ in range(3)] == [b"abcd", b"no", b""] and connection.alive
        reply = await connection.request("GET", "/", None, {})
        assert reply.status == 404 and not connection.alive, "its body is unread"

    against([chunked, sized, empty, sized], scenario)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
)
def test_a_server_may_close_after_its_reply(reply: bytes) -> None:
    async def scenario(connection: HttpConnection) -> None:
        assert await body_of(connection) == b"ok" and not connection.alive

    against([reply], scenario)


def test_a_json_object_is_bounded() -> None:
    whole = json.dumps({"a": 1}).encode()
    replies = [whole, b"[1]", b"{", b'{"a": "' + b"x" * (8 * MAX_BODY) + b'"}']

    async def scenario(connection: HttpConnection) -> None:
        found = []
        for _ in replies:
            reply = await connection.request("GET", "/", None, {})
            found.append(await reply.json_object())
        assert found == [{"a": 1}, {}, {}, {}]

    against([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply for reply in replies], scenario)


@pytest.mark.parametrize("size", [1, 2, 7, len(EVENTS)])
def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    reader = EventReader()
    pieces = [EVENTS[start : start + size] for start in range(0, len(EVENTS), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == READ


def test_a_line_without_end_is_refused() -> None:
    reader = EventReader()
    with pytest.raises(NotHttp, match="too long"):
        for _ in range(2 * MAX_BODY >> 16):
            assert not list(reader.feed(b"x" * (1 << 16)))
