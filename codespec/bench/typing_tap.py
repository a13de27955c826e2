"""Between a language server and a daemon: passes everything on as it comes, and keeps what was said and when. As a
daemon it has a port and, beside it, the user's own socket, by which a language server knows it: a question that is
taken back costs its connection, and over a port each new one would begin with a proof, which no editor pays for.

Knows HTTP and the daemon's events; knows no editor and judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from codespec.user_folders import is_own_socket, own_folder, socket_of

PATH = "/v1/codespec/complete"
MOST_BODY = 1 << 20
TOKENS = "codespec:generation_tokens_total"


@dataclass(slots=True)
class Stream:
    """One completion that the language server asked for: the text around the cursor, what was written, target tokens,
    and the clock's times: when the request was there, when the last event was passed on, when the text was done.
    """

    received: float
    prefix: str
    offset: int
    text: str = ""
    tokens: int = 0
    passed: float = 0.0
    done: float | None = None
    ended: float | None = None

    def take(self, name: str, value: dict[str, Any]) -> None:
        """Takes in one event."""
        if name == "text":
            self.text += value["text"]
        elif name == "round":
            self.tokens += value["accepted"] + 1
        elif name == "done":
            self.done = time.perf_counter()


class Tap:
    """Stands before the daemon at `upstream`."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._session = session
        self.url = ""
        self.streams: list[Stream] = []

    async def tokens(self) -> int:
        """Target tokens that the daemon has written so far, whoever asked for them; once nothing is under way."""
        while any(stream.ended is None for stream in self.streams):
            await asyncio.sleep(0.01)
        async with self._session.get(f"{self._upstream}/v1/codespec/stats") as reply:
            families = (await reply.json())["families"]
        family = next(family for family in families if family["name"] == TOKENS)
        return int(sum(sample["value"] for sample in family["samples"]))

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """One request and its reply. Where the language server hangs up, so does this."""
        body = await request.read()
        stream, events = _stream(body) if request.path == PATH else None, _Events()
        if stream is None:
            return await self._pass_on(request, body, lambda chunk: None)
        self.streams.append(stream)
        try:
            return await self._pass_on(request, body, lambda chunk: events.feed(chunk, stream))
        finally:
            stream.ended = time.perf_counter()

    async def _pass_on(self, request: web.Request, body: bytes, passed: Callable[[bytes], None]) -> web.StreamResponse:
        headers, url = {"Content-Type": request.content_type}, self._upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as reply:
            response = web.StreamResponse(status=reply.status, headers=_kept(reply))
            with contextlib.suppress(ConnectionResetError):  # the language server hung up
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                    if reply.status == 200:
                        passed(chunk)
                await response.write_eof()
        return response


class _Events:
    """Server-sent events out of pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes, stream: Stream) -> None:
        """Takes in what was passed on."""
        stream.passed = time.perf_counter()
        *whole, self._held = (self._held + chunk).split(b"\n\n")
        for event in whole:
            lines = [line for line in event.split(b"\n") if line.startswith((b"event: ", b"data: "))]
            if len(lines) == 2:
                stream.take(lines[0][7:].decode(), json.loads(lines[1][6:]))


@asynccontextmanager
async def tapped(upstream: str) -> AsyncIterator[Tap]:
    """A tap that listens on a free port, and on the user's own socket beside it, until the block ends."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    async with AsyncExitStack() as stack:
        session = aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 22, connector=_to(upstream))
        tap = Tap(upstream, await stack.enter_async_context(session))
        app = web.Application(client_max_size=MOST_BODY)
        app.router.add_route("*", "/{path:.*}", tap.pass_on)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        own_folder()
        stack.callback(socket_of(port).unlink, missing_ok=True)
        await web.UnixSite(runner, str(socket_of(port))).start()
        tap.url = f"http://127.0.0.1:{port}"
        yield tap


def _to(upstream: str) -> aiohttp.BaseConnector:
    """How the daemon is reached."""
    own = socket_of(urlsplit(upstream).port or 80)
    return aiohttp.UnixConnector(str(own)) if is_own_socket(own) else aiohttp.TCPConnector()


def _stream(body: bytes) -> Stream | None:
    """A request for text; None for one that only has the prompt read."""
    now = time.perf_counter()
    asked = json.loads(body)
    return None if asked.get("warm_up") else Stream(now, asked["prefix"], asked["prefix_offset"])


def _kept(reply: aiohttp.ClientResponse) -> dict[str, str]:
    names = ("Content-Type", "Cache-Control", "Retry-After")
    return {name: reply.headers[name] for name in names if name in reply.headers}
