"""A proxy between a language server and a daemon: it forwards all traffic as it arrives and records texts and times.

Like a daemon it has a port and a socket owned by the user, which a language server prefers: a cancelled request costs
its connection, and over a port each new connection would begin with a proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from codespec.client.connections import EventReader, HttpReply, ProvenConnections
from codespec.client.daemon_client import COMPLETE, STATS
from codespec.user_folders import own_folder, socket_of

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
    """A proxy of a daemon."""

    def __init__(self, daemon: ProvenConnections) -> None:
        self._daemon = daemon
        self.url = ""
        self.streams: list[Stream] = []

    async def tokens(self) -> int:
        """Wait until no completion is in flight. Return the number of target tokens written by the daemon so far."""
        while any(stream.ended is None for stream in self.streams):
            await asyncio.sleep(0.01)
        async with self._daemon.request("GET", STATS) as reply:
            families = (await reply.json_object())["families"]
        family = next(family for family in families if family["name"] == TOKENS)
        return int(sum(sample["value"] for sample in family["samples"]))

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Forward one request and its reply. If the language server disconnects, disconnect from the daemon too."""
        body = await request.read()
        stream = _stream(body) if request.path == COMPLETE else None
        if stream is None:
            return await self._forward(request, body, None)
        self.streams.append(stream)
        try:
            return await self._forward(request, body, stream)
        finally:
            stream.ended = time.perf_counter()

    async def _forward(self, request: web.Request, body: bytes, stream: Stream | None) -> web.StreamResponse:
        events, sent = EventReader(), json.loads(body) if body else None
        async with self._daemon.request(request.method, request.path_qs, sent) as reply:
            response = web.StreamResponse(status=reply.status, headers=_kept(reply))
            with contextlib.suppress(ConnectionResetError):  # the language server disconnected
                await response.prepare(request)
                async for chunk in reply.pieces():
                    await response.write(chunk)
                    if stream is not None and reply.status == 200:
                        for name, value in events.feed(chunk):
                            stream.take(name, value)
                await response.write_eof()
        return response


@asynccontextmanager
async def proxy_of(upstream: str) -> AsyncIterator[Proxy]:
    """Yield a proxy that listens on a free port and on the user's socket, until the block ends."""
    async with AsyncExitStack() as stack:
        daemon = ProvenConnections(upstream)
        stack.callback(daemon.close)
        proxy = Proxy(daemon)
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


def _stream(body: bytes) -> Stream | None:
    """Return the stream of a completion request; None for a warm-up."""
    now = time.perf_counter()
    request = json.loads(body)
    return None if request.get("warm_up") else Stream(now, request["prefix"], request["prefix_offset"])


def _kept(reply: HttpReply) -> dict[str, str]:
    names = ("content-type", "cache-control", "retry-after")
    return {name: reply.headers[name] for name in names if name in reply.headers}
