"""Everything that a server can do wrong: one clear sentence to the client, and nothing hangs."""

from __future__ import annotations

import asyncio
import time

import pytest
from codespec_upstream.client import UpstreamClient
from codespec_upstream.probe import MAX_FAILURES
from codespec_upstream.source import Upstream

from plugins.upstream.tests.servers import FakeServer, Request, chunk, fake_server, head, write_answer
from plugins.upstream.tests.test_daemon import PLACE, text_of, wait_for
from tests.server.daemons import Served, serving_source

RAW = {**PLACE, "shape": "raw"}


async def hang_before_head(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(20)


async def hang_after_head(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head())
    await asyncio.sleep(20)


async def hang_after_text(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head() + chunk("a + "))
    await asyncio.sleep(20)


async def drip(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head())
    for byte in chunk("a + " * 20):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def comments_only(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head())
    for _ in range(200):
        writer.write(b": still here\n\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def break_off(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head() + chunk("a + "))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def endless_line(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head() + b"data: ")
    for _ in range(1000):
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_text(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(head())
    while True:
        writer.write(chunk("word "))
        await writer.drain()


def replying(data: bytes):
    async def behave(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return behave


CASES = {
    "hang before head": (hang_before_head, "sent nothing for 0.5 s"),
    "hang after head": (hang_after_head, "sent nothing for 0.5 s"),
    "hang after text": (hang_after_text, "sent nothing for 0.5 s"),
    "drip": (drip, "sent nothing for 0.5 s"),
    "comments only": (comments_only, "sent nothing for 0.5 s"),
    "killed in the middle": (break_off, "broke off in the middle"),
    "ends too early": (replying(head() + chunk("a + ")), "broke off in the middle"),
    "half an event": (replying(head() + chunk("a + ") + b'data: {"choi'), "broke off in the middle of an event"),
    "closes at once": (replying(b""), "closed the connection before it answered"),
    "no HTTP": (replying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "does not speak HTTP"),
    "wrong content type": (replying(head(kind="text/html") + b"<html>"), "answered with text/html instead"),
    "no content type": (replying(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"), "instead of text/event-stream"),
    "compressed": (replying(head(Content_Encoding="gzip") + b"x"), "compresses its replies"),
    "invalid JSON": (replying(head() + b"data: {broken\n\n"), "sent invalid JSON"),
    "no object": (replying(head() + b"data: [1]\n\n"), "sent JSON that is not an object"),
    "deep JSON": (replying(head() + b"data: " + b"[" * 9999 + b"\n\n"), "sent invalid JSON"),
    "no text": (replying(head() + b'data: {"choices":[{"text":7}]}\n\n'), "sent a chunk without text"),
    "not UTF-8": (replying(head() + b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n'), "sent text that is not UTF-8"),
    "lone surrogate": (replying(head() + b'data: {"choices":[{"text":"\\ud800"}]}\n\n'), "sent text that is not UTF-8"),
    "error event": (replying(head() + b'data: {"error":{"message":"secret"}}\n\n'), "failed in the middle"),
    "401": (replying(head("401 No", "application/json") + b"{}"), "refuses the key (status 401)"),
    "404": (replying(head("404 No", "application/json") + b"{}"), "answers 404 at /v1/completions"),
    "500": (replying(head("500 No", "text/plain") + b"boom"), "failed (status 500)"),
    "503": (replying(head("503 No", "text/plain") + b"boom"), "failed (status 503)"),
    "redirect": (
        replying(head("307 No", Location="http://127.0.0.1:1/v1")),
        "redirects (status 307), which is refused",
    ),
    "endless line": (endless_line, "sent an event longer than"),
    "endless text": (endless_text, "writes more than requested"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_nothing_hangs(upstream: FakeServer, daemon: Served, name: str) -> None:
    upstream.behaviour, wanted = CASES[name]
    answer = daemon.post("/v1/codespec/complete", RAW)
    if answer.status == 200:
        last, value = answer.events[-1]
        assert last == "error"
        message = value["message"]
    else:
        assert answer.status in (502, 503, 504), answer.json
        message = answer.json["error"]["message"]
    assert wanted in message and message.startswith("The upstream server ") and message.endswith("."), message
    assert "\n" not in message and len(message) < 300 and "secret" not in message
    upstream.behaviour = write_answer
    assert text_of(daemon.post("/v1/codespec/complete", RAW).events) == "a + b", "the next request goes well"
    assert wait_for(lambda: daemon.daemon.num_open == 0 and daemon.source.num_running == 0)


def test_a_refused_request_quotes_the_server(upstream: FakeServer, daemon: Served) -> None:
    body = b'{"error":{"message":"too long:\\n  4000 tokens"}}'
    upstream.behaviour = replying(head("400 No", "application/json") + body)
    answer = daemon.post("/v1/codespec/complete", RAW)
    assert answer.status == 400 and "(status 400: too long: 4000 tokens)" in answer.json["error"]["message"]
    assert daemon.ask("GET", "/health").json["upstream"]["failures"] == 0, "the request's fault, not the server's"


def test_too_many_requests(upstream: FakeServer, daemon: Served) -> None:
    upstream.behaviour = replying(head("429 Slow", "application/json", Retry_After="2") + b"{}")
    answer = daemon.post("/v1/codespec/complete", RAW)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
    held = daemon.post("/v1/codespec/complete", RAW)
    assert held.status == 429 and len(upstream.streams) == 1, "the server's wish is kept"


def test_one_retry_before_the_first_byte_only(upstream: FakeServer, daemon: Served) -> None:
    tries: list[float] = []

    async def fail_once(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
        tries.append(time.monotonic())
        await (replying(head("503 No", "text/plain")) if len(tries) == 1 else write_answer)(server, request, writer)

    upstream.behaviour = fail_once
    assert text_of(daemon.post("/v1/codespec/complete", RAW).events) == "a + b"
    assert len(tries) == 2 and tries[1] - tries[0] >= 0.05
    assert daemon.ask("GET", "/health").json["upstream"]["retries"] == 1
    upstream.requests.clear()
    upstream.behaviour = break_off
    daemon.post("/v1/codespec/complete", RAW)
    assert len(upstream.streams) == 1, "text was sent already"


def test_a_killed_server_opens_the_circuit_and_a_probe_closes_it(upstream: FakeServer, daemon: Served) -> None:
    upstream.kill()
    for _ in range(MAX_FAILURES):
        answer = daemon.post("/v1/codespec/complete", RAW)
        assert answer.status == 502 and "can't be reached" in answer.json["error"]["message"]
    answer = daemon.post("/v1/codespec/complete", RAW)  # refused without another try
    assert answer.status == 503 and "after 5 failures in a row (" in answer.json["error"]["message"]
    assert int(answer.headers["Retry-After"]) >= 1
    health = daemon.ask("GET", "/health").json
    assert health["upstream"]["circuit"] == "open" and "can't be reached" in health["upstream"]["reason"]
    assert health["warning"].startswith("No request has been sent upstream")
    assert b"codespec:upstream_circuit_open 1.0" in daemon.ask("GET", "/metrics").body
    upstream.listen()
    assert wait_for(lambda: daemon.ask("GET", "/health").json["upstream"]["circuit"] == "closed")
    assert text_of(daemon.post("/v1/codespec/complete", RAW).events) == "a + b"


def test_a_key_is_sent_and_a_wrong_one_ends_the_start() -> None:
    with fake_server(key="k-123") as server:
        with serving_source(Upstream(UpstreamClient(server.url, "k-123"))) as daemon:
            assert text_of(daemon.post("/v1/codespec/complete", RAW).events) == "a + b"
            assert server.streams[0].headers["authorization"] == "Bearer k-123"
        source = Upstream(UpstreamClient(server.url, "wrong"))
        with serving_source(source, ready=False):
            assert wait_for(lambda: source.state == "failed")
            assert "refuses the key" in str(source.error)


def test_waits_for_a_server_that_starts_later() -> None:
    with fake_server() as server:
        server.kill()
        source = Upstream(UpstreamClient(server.url))
        with serving_source(source, ready=False) as daemon:
            assert wait_for(lambda: "can't be reached" in daemon.daemon.reason)
            answer = daemon.post("/v1/codespec/complete", RAW)
            assert answer.status == 503
            assert "The daemon is starting (the upstream server can't be reached" in answer.json["error"]["message"]
            server.listen()
            assert wait_for(lambda: source.state == "ready")


def test_several_models_need_a_choice() -> None:
    with fake_server(models=[{"id": "a"}, {"id": "b"}]) as server:
        source = Upstream(UpstreamClient(server.url))
        with serving_source(source, ready=False):
            assert wait_for(lambda: source.state == "failed") and "choose one with --upstream-model (a, b)" in str(
                source.error
            )
        with serving_source(Upstream(UpstreamClient(server.url), "b")) as daemon:
            assert daemon.ask("GET", "/v1/models").json["data"][0]["id"] == "b"
