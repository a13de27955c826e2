"""Run the real language server as a process, with a minimal editor: the client side of the Language Server Protocol as
far as typing needs it.

Between the language server and its daemon is a proxy, which forwards all traffic as it arrives and records texts and
times. Like a daemon it has a port and a socket owned by the user, which a language server prefers: a cancelled request
costs its connection, and over a port each new connection would begin with a proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from codespec.api.settings import PREFIX
from codespec.client.connections import EventReader, HttpReply, ProvenConnections, as_object
from codespec.client.daemon_client import COMPLETE, STATS
from codespec.errors import ConfigError
from codespec.user_folders import own_folder, socket_of
from codespec_lab.bench.typing_sites import TypingSite

MAX_BODY = 1 << 20
TOKENS = "codespec:generation_tokens_total"
AUTOMATIC = 2  # the trigger kind of VS Code's requests during typing
END_SECONDS = 10.0
MAX_LINE = 1 << 20


@dataclass(slots=True)
class Stream:
    """One completion requested by the language server: the text before the cursor, the text and number of target tokens
    written, the prompt's tokens, and the times when the request arrived, the first piece of text was there, the text
    was complete, and the stream ended.
    """

    received: float
    prefix: str
    offset: int
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    first: float | None = None
    done: float | None = None
    ended: float | None = None

    def take(self, name: str, value: dict[str, Any]) -> None:
        """Handle one event."""
        if name == "text":
            self.first = self.first or time.perf_counter()
            self.text += value["text"]
        elif name == "round":
            self.tokens += value["accepted"] + 1
        elif name == "done":
            self.done = time.perf_counter()
            self.prompt_tokens = value.get("stats", {}).get("prompt_tokens", 0)


class Proxy:
    """A proxy of a daemon. `warm_ups` counts the language server's warm-ups that were read whole."""

    def __init__(self, daemon: ProvenConnections) -> None:
        self._daemon = daemon
        self.url = ""
        self.streams: list[Stream] = []
        self.warm_ups = 0

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
            response = await self._forward(request, body, None)
            self.warm_ups += request.path == COMPLETE
            return response
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
                        for name, data in events.feed(chunk):
                            stream.take(name, as_object(data))
                await response.write_eof()
        return response


@asynccontextmanager
async def proxy_of(upstream: str) -> AsyncIterator[Proxy]:
    """Yield a proxy that listens on a free port and on the user's socket, until the block ends."""
    async with AsyncExitStack() as stack:
        daemon = ProvenConnections(upstream)
        stack.callback(daemon.close)
        proxy = Proxy(daemon)
        app = web.Application(client_max_size=MAX_BODY)
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


class Editor:
    """One editor with one language server, and at most one open document. `on_more` is called with the URI and version
    of a document whose answer has grown.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        self.on_more: Callable[[str, int], None] = lambda uri, version: None

    async def start(self) -> None:
        """Perform VS Code's handshake."""
        inline = {"inlineCompletion": {"dynamicRegistration": True}}
        capabilities = {"textDocument": inline, "experimental": {"codespec": {"more": True}}}
        await self.request("initialize", {"processId": os.getpid(), "rootUri": None, "capabilities": capabilities})
        self.notify("initialized", {})

    def configure(self, **settings: Any) -> None:
        """Change some of the server's settings."""
        self.notify("workspace/didChangeConfiguration", {"settings": {"codespec": settings}})

    def focus(self, site: TypingSite, where: Mapping[str, Any]) -> None:
        """Report that the cursor rests at a position of the document."""
        self.notify("textDocument/didFocus", {"textDocument": {"uri": site.uri}, "position": where})

    def open(self, site: TypingSite, text: str) -> None:
        """Open a document with this text as its first version."""
        item = {"uri": site.uri, "languageId": site.language, "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def close(self, site: TypingSite) -> None:
        """Close a document."""
        self.notify("textDocument/didClose", {"textDocument": {"uri": site.uri}})

    def insert(self, site: TypingSite, version: int, position: Mapping[str, int], text: str) -> None:
        """Insert text at a position; the document then has the given version."""
        change = {"range": {"start": position, "end": position}, "text": text}
        document = {"uri": site.uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})

    def complete(
        self, site: TypingSite, position: Mapping[str, int], *, whole: bool = False
    ) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Request inline completions. Return the request's number and its future reply.

        The reply may have only the first words, and `on_more` follows, unless `whole` text is demanded.
        """
        context = {"triggerKind": AUTOMATIC, "whole": whole}
        params = {"textDocument": {"uri": site.uri}, "position": position, "context": context}
        return self._begin("textDocument/inlineCompletion", params)

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        self.notify("$/cancelRequest", {"id": number})

    def accept(self, item: Mapping[str, Any]) -> None:
        """Run the command of an item that was accepted whole."""
        command = item["command"]
        self._begin("workspace/executeCommand", {"command": command["command"], "arguments": command["arguments"]})

    async def counters(self) -> dict[str, Any]:
        """Return the server's own counters."""
        status = await self.request("codespec/status", {})
        counters: dict[str, Any] = status["counters"]
        return counters

    async def request(self, method: str, params: Any) -> Any:
        """Return a request's result. Raise ConfigError if the server has ended or refuses."""
        reply = await self._begin(method, params)[1]
        if "error" in reply:
            raise ConfigError(f"The language server failed on {method}: {reply['error']['message']}")
        return reply["result"]

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def leave(self) -> None:
        """Shut the server down; kill it if that takes too long."""
        with contextlib.suppress(TimeoutError, ConfigError):
            async with asyncio.timeout(END_SECONDS):
                await self.request("shutdown", None)
                self.notify("exit", None)
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _begin(self, method: str, params: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self._listening.done():
            raise ConfigError("The language server has ended: run `codespec lsp` by hand to see why.")
        self._numbers += 1
        future = self._waiting[self._numbers] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params})
        return self._numbers, future

    def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._in.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _listen(self) -> None:
        while (message := await _read(self._out)) is not None:
            if "method" in message:
                self._take(message)
            elif (future := self._waiting.pop(message["id"], None)) is not None and not future.done():
                future.set_result(message)
        for future in self._waiting.values():
            if not future.done():
                future.set_result({"error": {"message": "it has ended."}})

    def _take(self, message: Mapping[str, Any]) -> None:
        """Handle the server's notifications; answer its requests with null."""
        params = message.get("params") or {}
        if "id" in message:
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": None})
        elif message["method"] == "codespec/more":
            self.on_more(params["uri"], params["version"])


@asynccontextmanager
async def language_server(url: str) -> AsyncIterator[Editor]:
    """Yield an editor with its own language server for the daemon at `url`, until the block ends."""
    words = [sys.executable, "-P", "-m", "codespec", "lsp", "--stdio", "--no-start", "--daemon", url]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=MAX_LINE, env=environment)
    editor = Editor(process)
    try:
        await editor.start()
        yield editor
    finally:
        await editor.leave()


async def _read(stream: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message, or None at the end."""
    length = 0
    try:
        while (line := await stream.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        message: dict[str, Any] = json.loads(await stream.readexactly(length)) if line else {}
    except asyncio.IncompleteReadError:
        return None
    return message or None


@dataclass(frozen=True, slots=True)
class Desktop:
    """An editor, and the proxy between its language server and its daemon."""

    editor: Editor
    proxy: Proxy


@asynccontextmanager
async def open_desktop(daemon: str) -> AsyncIterator[Desktop]:
    """Yield an editor for a daemon, until the block ends."""
    async with proxy_of(daemon) as proxy, language_server(proxy.url) as editor:
        yield Desktop(editor, proxy)
