"""A completions server on loopback that behaves as a test wants, well or badly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

QWEN = "Qwen/Qwen2.5-Coder-0.5B-Instruct"


@dataclass
class Request:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def chunk(text: str, reason: str | None = None, **more: Any) -> bytes:
    """Return an event with a piece of text."""
    value = {"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": reason}], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def head(status: str = "200 OK", kind: str = "text/event-stream", **more: Any) -> bytes:
    """Return the head of a reply that ends with the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
    return "\r\n".join(
        [*lines, *(f"{name.replace('_', '-')}: {value}" for name, value in more.items()), "", ""]
    ).encode()


Behaviour = Callable[["FakeServer", Request, asyncio.StreamWriter], Awaitable[None]]


async def write_answer(server: FakeServer, request: Request, writer: asyncio.StreamWriter) -> None:
    """Stream the answer, a word a piece, as vLLM does."""
    writer.write(head())
    pieces = [word + " " for word in server.answer.split(" ")]
    pieces[-1] = pieces[-1][:-1]
    for piece in pieces[: request.body["max_tokens"]]:
        writer.write(chunk(piece))
        server.written += 1
        await writer.drain()
        await asyncio.sleep(server.pause)
    reason = "length" if len(pieces) > request.body["max_tokens"] else "stop"
    writer.write(chunk("", reason))
    usage = {"prompt_tokens": 7, "completion_tokens": len(pieces), "prompt_tokens_details": {"cached_tokens": 3}}
    writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n" + DONE)


@dataclass
class FakeServer:
    """The server: what it answers and what it has seen. `behaviour` answers streams, the rest goes well."""

    answer: str = "a + b"
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": QWEN, "max_model_len": 2048}])
    behaviour: Behaviour = write_answer
    pause: float = 0.0
    suffix: str = "refused"  # or taken, or ignored
    key: str = ""
    whole_fails: bool = False  # whether one-token requests fail too
    requests: list[Request] = field(default_factory=list)
    gone: int = 0  # streams that a client closed
    written: int = 0  # pieces of answers
    port: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def streams(self) -> list[Request]:
        """The streamed requests, without those of a probe."""
        return [request for request in self.requests if request.body.get("stream")]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection."""
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await self._read(reader)
            self.requests.append(request)
            if not request.body.get("stream"):
                writer.write(self._whole(request))
                await writer.drain()
            else:
                watch = asyncio.create_task(self._watch(reader))
                try:
                    await self.behaviour(self, request, writer)
                    await writer.drain()
                finally:
                    await asyncio.sleep(0)
                    watch.cancel()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await reader.read()
        self.gone += 1

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(first.split(" ")[1], headers, json.loads(data) if data else {})

    def _whole(self, request: Request) -> bytes:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return head("401 Unauthorized", "application/json") + b'{"error":{"message":"no"}}'
        if request.path == "/v1/models":
            return head(kind="application/json") + json.dumps({"data": self.models}).encode()
        if self.whole_fails:
            return head("500 Oops", "application/json") + b"{}"
        filled = "suffix" in request.body
        if filled and self.suffix == "refused":
            return head("400 Bad Request", "application/json") + b'{"error":{"message":"suffix is not supported"}}'
        tokens = 40 if filled and self.suffix == "taken" else 8
        reply = {"choices": [{"text": " a", "finish_reason": "length"}], "usage": {"prompt_tokens": tokens}}
        return head(kind="application/json") + json.dumps(reply).encode()

    def listen(self) -> None:
        """Listen, at the same port as before if there was one."""

        async def begin() -> None:
            self.server = await asyncio.start_server(self.handle, "127.0.0.1", self.port)
            self.port = self.server.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(begin(), self.loop).result(10)

    def kill(self) -> None:
        """Stop listening and drop all connections."""

        async def end() -> None:
            assert self.server is not None
            self.server.close()
            others = [task for task in asyncio.all_tasks(self.loop) if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.01)  # until the loop has closed the sockets

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)


@contextmanager
def fake_server(**settings: Any) -> Iterator[FakeServer]:
    """Run a server in a thread."""
    server = FakeServer(**settings)
    thread = threading.Thread(target=server.loop.run_forever, daemon=True)
    thread.start()
    server.listen()
    try:
        yield server
    finally:
        server.kill()
        server.loop.call_soon_threadsafe(server.loop.stop)
        thread.join(10)
        server.loop.close()
