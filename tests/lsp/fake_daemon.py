"""A fake daemon under test control: it records requests and sends scripted replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from codespec_lsp.daemon import Daemons
from codespec_lsp.messages import Messages
from codespec_lsp.server import Server
from codespec_lsp.settings import EditorSettings

from codespec import __version__
from codespec.server import sockets
from tests.lsp.conversation import Editor, until


class Asked:
    """One request: its body, the queued reply, and whether the client has disconnected."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.words: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.ended = asyncio.Event()

    def say(self, text: str, choice: int = 0) -> None:
        """Send a piece of text."""
        self.words.put_nowait(("text", {"choice": choice, "text": text}))

    def end(self, reason: str = "stop", choice: int = 0) -> None:
        """End a choice."""
        self.words.put_nowait(("done", {"choice": choice, "finish_reason": reason, "stats": {}}))

    def fail(self, message: str) -> None:
        """Send an error after the stream has begun."""
        self.words.put_nowait(("error", {"field": "", "message": message}))

    def hang_up(self) -> None:
        """End the stream, complete or not."""
        self.words.put_nowait(None)


class FakeDaemon:
    """Serves on its own port. `script`, if set, is sent to every request at once; `refusals` are sent first."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.warmed: list[Asked] = []  # warm-ups, open until the test ends them
        self.files: list[dict[str, Any]] = []  # bodies
        self.sessions: list[str] = []  # x-session-id of each request
        self.file_refusals: list[int] = []  # statuses to send first
        self.script: list[str] | None = None
        self.refusals: list[tuple[int, str, dict[str, str]]] = []
        self.edit_format: str | None = None  # in the statistics; None: a daemon without edits
        self.stats_asked = 0
        self.edits: list[Asked] = []  # requests for edits
        self.edit_script: list[tuple[str, dict[str, Any]]] | None = None  # events sent to each of them at once
        self.port = 0

    async def question(self, count: int = 1) -> Asked:
        """Wait for `count` requests and return the last."""
        await until(lambda: len(self.asked) >= count)
        return self.asked[count - 1]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Handle the completion endpoint."""
        self.sessions.append(request.headers.get("x-session-id", ""))
        if self.refusals and not (await request.json()).get("warm_up"):
            status, message, headers = self.refusals.pop(0)
            return web.json_response({"error": {"message": message}}, status=status, headers=headers)
        asked = Asked(await request.json())
        if asked.body.get("warm_up"):
            self.warmed.append(asked)
        else:
            self.asked.append(asked)
        if self.script is not None and asked not in self.warmed:
            for choice in range(asked.body.get("n", 1)):
                for piece in self.script:
                    asked.say(piece, choice)
                asked.end(choice=choice)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        left = set(range(asked.body.get("n", 1)))
        try:
            await response.prepare(request)
            while left and (word := await asked.words.get()) is not None:
                name, value = word
                if name == "done":
                    left.discard(value["choice"])
                await response.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
            asked.ended.set()
        except (asyncio.CancelledError, ConnectionResetError):
            asked.gone.set()
            raise
        return response

    async def take_files(self, request: web.Request) -> web.Response:
        """Handle the endpoint for files."""
        if self.file_refusals:
            status = self.file_refusals.pop(0)
            headers = {"Retry-After": "0"} if status == 503 else {}
            return web.json_response({"error": {"message": "Not now."}}, status=status, headers=headers)
        self.files.append(await request.json())
        return web.json_response({"files": len(self.files[-1]["files"])})

    async def stats(self, _request: web.Request) -> web.Response:
        """Report the format of edits."""
        self.stats_asked += 1
        format_ = {} if self.edit_format is None else {"edit_format": self.edit_format}
        return web.json_response({"daemon": {"version": __version__, "state": "ready", "model": "big", **format_}})

    async def edit(self, request: web.Request) -> web.StreamResponse:
        """Handle the endpoint for edits: send events until a place is done, or the test hangs up."""
        asked = Asked(await request.json())
        self.edits.append(asked)
        for event in self.edit_script or ():
            asked.words.put_nowait(event)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        left = len(asked.body["places"])
        try:
            await response.prepare(request)
            while left and (word := await asked.words.get()) is not None:
                left -= word[0] == "done"
                await response.write(f"event: {word[0]}\ndata: {json.dumps(word[1])}\n\n".encode())
            asked.ended.set()
        except (asyncio.CancelledError, ConnectionResetError):
            asked.gone.set()
            raise
        return response

    async def health(self, _request: web.Request) -> web.Response:
        """Report ready."""
        return web.json_response({"status": "ok", "version": __version__, "target": "big", "drafter": "small"})


@asynccontextmanager
async def daemon(port: int = 0) -> AsyncIterator[FakeDaemon]:
    """Run a fake daemon."""
    fake = FakeDaemon()
    app = web.Application()
    app[sockets.PROOF_KEYS] = sockets.proof_keys("")
    app.add_routes(sockets.PROOF_ROUTES)
    app.add_routes([web.post("/v1/codespec/complete", fake.complete), web.get("/health", fake.health)])
    app.add_routes([web.post("/v1/codespec/files", fake.take_files), web.post("/v1/codespec/edit", fake.edit)])
    app.add_routes([web.get("/v1/codespec/stats", fake.stats)])
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    fake.port = runner.addresses[0][1]
    try:
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def editor(
    defaults: EditorSettings, daemons: Daemons | None = None, *, copilot: bool = False
) -> AsyncIterator[Editor]:
    """Yield a client connected to its own server over a socket."""
    shared = daemons or Daemons()
    done = asyncio.Event()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Server(shared, defaults, copilot=copilot)
        server.protocol.set_writer(writer)
        try:
            await Messages(server.protocol).read(reader)  # type: ignore[arg-type]
        finally:
            await server.session.close()
            writer.close()
            done.set()

    listening = await asyncio.start_server(converse, "127.0.0.1", 0, limit=1 << 24)
    connection = await asyncio.open_connection(*listening.sockets[0].getsockname(), limit=1 << 24)
    client = Editor(*connection)
    try:
        yield client
    finally:
        await client.leave()
        await done.wait()
        listening.close()
        await shared.close()


@asynccontextmanager
async def talking(start: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[tuple[Editor, FakeDaemon]]:
    """Yield an initialized editor and a fake daemon; `start` holds the editor's initialize parameters.

    The budget is 60 seconds unless one is given.
    """
    async with daemon() as fake:
        given = {"budget_ms": 60_000, "url": f"http://127.0.0.1:{fake.port}", "start_daemon": False, **settings}
        async with editor(EditorSettings(**given)) as client:
            await client.start(**(start or {}))
            yield client, fake
