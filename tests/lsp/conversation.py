"""A scripted LSP client: sends messages over a stream and records the server's notifications and requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

SECONDS = 300  # shared cores are sometimes slow
Result = TypeVar("Result")
URI = "file:///a.py"


def run(scenario: Awaitable[Result], seconds: float = SECONDS) -> Result:
    """Run a scenario to its end, with a time limit."""

    async def bounded() -> Result:
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    while not condition():
        await asyncio.sleep(0.002)


class Editor:
    """One client. `told` lists the server's notifications; `asked` lists its requests, answered from `answers` or with
    null. `opened` lists the URIs of the documents that were opened.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = 0
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self.told: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.stray: list[dict[str, Any]] = []
        self.capabilities: dict[str, Any] = {}
        self.opened: dict[str, None] = {}
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def send(self, message: Any) -> None:
        """Send one JSON message."""
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        """Send `body` as one frame."""
        self._writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def send_raw(self, data: bytes) -> None:
        """Send raw bytes."""
        self._writer.write(data)

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def begin(self, method: str, params: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request; return its id and a future for the reply."""
        self._numbers += 1
        future = self._waiting[self._numbers] = asyncio.get_running_loop().create_future()
        self.send({"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params})
        return self._numbers, future

    async def request(self, method: str, params: Any) -> dict[str, Any]:
        """Send a request and return the whole reply."""
        return await self.begin(method, params)[1]

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        self.notify("$/cancelRequest", {"id": number})

    async def start(self, **params: Any) -> dict[str, Any]:
        """Perform the handshake; return the server's capabilities."""
        inline = {"textDocument": {"inlineCompletion": {}}}
        given = {"processId": None, "rootUri": None, "capabilities": inline, **params}
        reply = await self.request("initialize", given)
        self.capabilities = reply["result"]["capabilities"]
        self.notify("initialized", {})
        return self.capabilities

    def open(self, text: str, uri: str = URI, language: str = "python") -> None:
        """Open a document."""
        self.opened[uri] = None
        item = {"uri": uri, "languageId": language, "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def close(self, uri: str = URI) -> None:
        """Close a document."""
        self.opened.pop(uri)
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    async def begin_again(self) -> None:
        """Close all documents and forget what the server has sent."""
        for uri in list(self.opened):
            self.close(uri)
        await self.request("workspace/executeCommand", {"command": "codespec.explain"})  # after all that it had to say
        for record in (self.told, self.asked, self.stray):
            record.clear()

    def change(self, version: int, *changes: dict[str, Any], uri: str = URI) -> None:
        """Edit a document."""
        identifier = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": identifier, "contentChanges": list(changes)})

    def type(self, version: int, line: int, character: int, text: str, uri: str = URI) -> None:
        """Insert text at a position."""
        self.change(version, insertion(line, character, text), uri=uri)

    def ask(self, line: int, character: int, uri: str = URI, trigger: int = 2, **context: Any) -> Any:
        """Request inline completions; return the request's id and a future for the reply."""
        return self.begin("textDocument/inlineCompletion", question(line, character, uri, trigger, **context))

    async def items(self, line: int, character: int, **more: Any) -> list[dict[str, Any]]:
        """Return the inline completions at a position."""
        reply = await self.ask(line, character, **more)[1]
        assert "result" in reply, reply["error"]
        return list(reply["result"]["items"])

    async def texts(self, line: int, character: int, **more: Any) -> list[str]:
        """Return the texts of the inline completions at a position."""
        return [item["insertText"] for item in await self.items(line, character, **more)]

    async def grows_to(self, line: int, character: int, text: str) -> list[str]:
        """Request completions, again after each codespec/more, until one equals `text`; return all texts seen.

        Assert that each text begins with the previous one.
        """
        shown: list[str] = []
        while True:
            heard = len(self.heard("codespec/more"))
            shown += await self.texts(line, character)
            for earlier, later in pairwise(shown):
                assert later.startswith(earlier), "what is shown is not taken back"
            if shown and shown[-1] == text:
                return shown
            await self.hear("codespec/more", heard + 1)

    async def status(self) -> dict[str, Any]:
        """Return the result of codespec/status."""
        reply = await self.request("codespec/status", {})
        return dict(reply["result"])

    def heard(self, method: str) -> list[Any]:
        """Return the parameters of all notifications of a method."""
        return [params for name, params in self.told if name == method]

    async def hear(self, method: str, count: int = 1) -> Any:
        """Wait for `count` notifications of a method; return the parameters of the last."""
        await until(lambda: len(self.heard(method)) >= count)
        return self.heard(method)[count - 1]

    async def leave(self) -> None:
        """Disconnect without a shutdown."""
        self._writer.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def shut_down(self) -> None:
        """Shut the server down in order."""
        await self.request("shutdown", None)
        self.notify("exit", None)

    async def _listen(self) -> None:
        while (message := await read_message(self._reader)) is not None:
            if "method" not in message:
                waiting = self._waiting.pop(message.get("id"), None)
                if waiting is None:
                    self.stray.append(message)
                elif not waiting.done():
                    waiting.set_result(message)
            elif "id" in message:
                self.asked.append((message["method"], message.get("params")))
                answer = self.answers.get(message["method"])
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
            else:
                self.told.append((message["method"], message.get("params")))


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message, or None at end of stream."""
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if not line:
        return None
    return dict(json.loads(await reader.readexactly(length)))


def question(line: int, character: int, uri: str = URI, trigger: int = 2, **context: Any) -> dict[str, Any]:
    """Return the parameters of textDocument/inlineCompletion."""
    position = {"line": line, "character": character}
    return {"textDocument": {"uri": uri}, "position": position, "context": {"triggerKind": trigger, **context}}


def insertion(line: int, character: int, text: str) -> dict[str, Any]:
    """Return a content change that inserts text."""
    return replacement(line, character, line, character, text)


def replacement(line: int, character: int, end_line: int, end_character: int, text: str) -> dict[str, Any]:
    """Return a content change that replaces a range."""
    start, end = {"line": line, "character": character}, {"line": end_line, "character": end_character}
    return {"range": {"start": start, "end": end}, "text": text}
