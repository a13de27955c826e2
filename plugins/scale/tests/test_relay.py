"""The relay in front of Ray's proxy: one retry before the first byte, one clear error after it, no half events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from codespec_scale import relay
from codespec_scale.relay import REPLICA, Message, Receive, Relay, Scope, Send

from codespec.api.limits import MAX_BODY
from plugins.scale.tests.asgi import Client, ask, scope

Script = Callable[[Receive, Send], Awaitable[None]]
EVENTS, LINES, JSON = "text/event-stream; charset=utf-8", "application/x-ndjson", "application/json"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.0)


class Attempts:
    """An application that plays one script for each attempt, and keeps the bodies that it got."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts, self.bodies = list(scripts), list[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive())["body"])
        scope["headers"].append((b"x-request-id", b"mine"))
        await self._scripts.pop(0)(receive, send)


def start(kind: str, status: int = 200, replica: bool = True) -> Message:
    headers = [(b"content-type", kind.encode()), *([(REPLICA, b"a")] if replica else [])]
    return {"type": "http.response.start", "status": status, "headers": headers}


def plays(*pieces: bytes, kind: str = EVENTS, status: int = 200, ends: bool = True, replica: bool = True) -> Script:
    """Return a reply in pieces; without `ends` the replica dies after them."""

    async def play(receive: Receive, send: Send) -> None:
        await send(start(kind, status, replica))
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return play


DIES = plays(b"Internal Server Error", kind="text/plain", status=500, replica=False)  # Ray's reply for a dead replica
ONE, TWO = b'event: text\ndata: {"text":"a"}\n\n', b'event: done\ndata: {"finish_reason":"stop"}\n\n'


def answered(app: Attempts, path: str = "/v1/completions") -> tuple[int, bytes]:
    reply = asyncio.run(ask(Relay(app), "POST", path, b"{}"))
    assert reply.ended
    return reply.status, reply.body


def test_a_whole_stream_passes_as_it_is() -> None:
    assert answered(Attempts(plays(ONE, TWO))) == (200, ONE + TWO)


def test_each_whole_event_passes_at_once() -> None:
    """The second event waits until the client has the first one."""
    seen = asyncio.Event()

    async def script(receive: Receive, send: Send) -> None:
        await send(start(EVENTS))
        await send({"type": "http.response.body", "body": ONE + TWO[:9], "more_body": True})
        await asyncio.wait_for(seen.wait(), 60)
        await send({"type": "http.response.body", "body": TWO[9:], "more_body": False})

    async def run() -> list[bytes]:
        client = Client(b"{}")

        async def take(message: Message) -> None:
            await client.reply.take(message)
            if client.reply.body == ONE:
                seen.set()

        await Relay(Attempts(script))(scope("POST", "/v1/completions", b"{}"), client.receive, take)
        return client.reply.pieces

    assert asyncio.run(run()) == [ONE, TWO]


@pytest.mark.parametrize("first", [DIES, plays(ends=False), plays(b'{"hal', kind=JSON, ends=False)])
def test_a_death_before_the_first_byte_is_not_seen(first: Script) -> None:
    app = Attempts(first, plays(ONE, TWO))
    assert answered(app) == (200, ONE + TWO)
    assert app.bodies == [b"{}", b"{}"]


def test_two_deaths_are_one_sentence() -> None:
    app = Attempts(DIES, DIES, plays(ONE))
    status, body = answered(app)
    assert (status, json.loads(body)["error"]["message"]) == (503, relay.NONE_ANSWERS) and len(app.bodies) == 2


@pytest.mark.parametrize(
    ("path", "kind", "whole", "error"),
    [
        ("/v1/codespec/complete", EVENTS, ONE, b'event: error\ndata: {"field":"","message":"%s"}\n\n'),
        ("/v1/completions", EVENTS, ONE, b"data: %s\n\n"),
        ("/api/generate", LINES, b'{"response":"a"}\n', b'{"error":"%s"}\n'),
    ],
)
def test_a_cut_stream_ends_with_one_error_after_its_last_whole_event(
    path: str, kind: str, whole: bytes, error: bytes
) -> None:
    app = Attempts(plays(whole, whole + b"half of an ev", kind=kind, ends=False), plays(ONE))
    status, body = answered(app, path)
    start, end = error.split(b"%s")
    assert status == 200 and body.startswith(whole + whole + start) and body.endswith(end)
    assert body.count(relay.CUT.encode()) == 1 and len(app.bodies) == 1, "it is not begun again"
    if path == "/v1/completions":
        assert json.loads(body.removeprefix(whole + whole + b"data: "))["error"]["code"] == 503


def test_errors_of_a_daemon_are_its_answers() -> None:
    app = Attempts(plays(b'{"error":{}}', kind=JSON, status=503), DIES)
    assert answered(app) == (503, b'{"error":{}}') and len(app.bodies) == 1


def test_who_has_left_gets_no_second_attempt() -> None:
    async def leaves(receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"

    async def run() -> None:
        app, client = Attempts(leaves, plays(ONE)), Client(b"{}")
        client.left.set()
        await Relay(app)(scope("POST", "/v1/completions", b"{}"), client.receive, client.reply.take)
        assert len(app.bodies) == 1 and not client.reply.status

    asyncio.run(run())


def test_a_body_in_pieces_is_sent_whole_and_one_too_large_is_refused() -> None:
    async def run(*pieces: bytes) -> tuple[int, list[bytes]]:
        app, client = Attempts(DIES, plays(ONE)), Client(*pieces)
        await Relay(app)(scope("POST", "/v1/completions"), client.receive, client.reply.take)
        return client.reply.status, app.bodies

    assert asyncio.run(run(b"ab", b"", b"c")) == (200, [b"abc", b"abc"])
    assert asyncio.run(run(b"x" * MAX_BODY, b"x")) == (413, [])


def test_what_is_no_request_passes() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    asyncio.run(Relay(app)({"type": "websocket"}, Client().receive, Client().reply.take))
    assert seen == ["websocket"]
