"""A proxy between a language server and a daemon: it forwards all traffic as it arrives and records texts and times.

Like a daemon it has a port and a socket owned by the user, which a language server prefers: a cancelled request costs
its connection, and over a port each new connection would begin with a proof.
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
    """One completion requested by the language server: the text before the cursor, the text and number of target tokens
    written, and the times when the request arrived, the text was complete, and the stream ended.
    """

    received: float
    prefix: str
    offset: int
    text: str = ""
    tokens: int = 0
    done: float | None = None
    ended: float | None = None

    def take(self, name: str, value: dict[str, Any]) -> None:
        """Handle one event."""
        if name == "text":
            self.text += value["text"]
        elif name == "round":
            self.tokens += value["accepted"] + 1
        elif name == "done":
            self.done = time.perf_counter()


class Proxy:
    """A proxy of the daemon at `upstream`."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self._upstream = upstream
        self._session = session
        self.url = ""
        self.streams: list[Stream] = []

    async def tokens(self) -> int:
        """Wait until no completion is in flight. Return the number of target tokens written by the daemon so far."""
        while any(stream.ended is None for stream in self.streams):
            await asyncio.sleep(0.01)
        async with self._session.get(f"{self._upstream}/v1/codespec/stats") as reply:
            families = (await reply.json())["families"]
        family = next(family for family in families if family["name"] == TOKENS)
        return int(sum(sample["value"] for sample in family["samples"]))

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Forward one request and its reply. If the language server disconnects, disconnect from the daemon too."""
        body = await request.read()
        stream, events = _stream(body) if request.path == PATH else None, _Events()
        if stream is None:
            return await self._forward(request, body, lambda chunk: None)
        self.streams.append(stream)
        try:
            return await self._forward(request, body, lambda chunk: events.feed(chunk, stream))
        finally:
            stream.ended = time.perf_counter()

    async def _forward(
        self, request: web.Request, body: bytes, forwarded: Callable[[bytes], None]
    ) -> web.StreamResponse:
        headers, url = {"Content-Type": request.content_type}, self._upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as reply:
            response = web.StreamResponse(status=reply.status, headers=_kept(reply))
            with contextlib.suppress(ConnectionResetError):  # the language server disconnected
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                    if reply.status == 200:
                        forwarded(chunk)
                await response.write_eof()
        return response


class _Events:
    """Parses server-sent events from chunks."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes, stream: Stream) -> None:
        """Handle a forwarded chunk."""
        *whole, self._held = (self._held + chunk).split(b"\n\n")
        for event in whole:
            lines = [line for line in event.split(b"\n") if line.startswith((b"event: ", b"data: "))]
            if len(lines) == 2:
                stream.take(lines[0][7:].decode(), json.loads(lines[1][6:]))


@asynccontextmanager
async def proxy_of(upstream: str) -> AsyncIterator[Proxy]:
    """Yield a proxy that listens on a free port and on the user's socket, until the block ends."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    async with AsyncExitStack() as stack:
        session = aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 22, connector=_to(upstream))
        proxy = Proxy(upstream, await stack.enter_async_context(session))
        app = web.Application(client_max_size=MOST_BODY)
        app.router.add_route("*", "/{path:.*}", proxy.forward)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        own_folder()
        stack.callback(socket_of(port).unlink, missing_ok=True)
        await web.UnixSite(runner, str(socket_of(port))).start()
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy


def _to(upstream: str) -> aiohttp.BaseConnector:
    """Return the connector to the daemon, over its socket if there is one."""
    own = socket_of(urlsplit(upstream).port or 80)
    return aiohttp.UnixConnector(str(own)) if is_own_socket(own) else aiohttp.TCPConnector()


def _stream(body: bytes) -> Stream | None:
    """Return the stream of a completion request; None for a warm-up."""
    now = time.perf_counter()
    request = json.loads(body)
    return None if request.get("warm_up") else Stream(now, request["prefix"], request["prefix_offset"])


def _kept(reply: aiohttp.ClientResponse) -> dict[str, str]:
    names = ("Content-Type", "Cache-Control", "Retry-After")
    return {name: reply.headers[name] for name in names if name in reply.headers}
