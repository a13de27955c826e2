"""Talk to an ASGI application in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from codespec_scale.relay import App, Message

SERVER = ("127.0.0.1", 8000)


@dataclass
class Reply:
    """What a client has received so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def take(self, message: Message) -> None:
        assert not self.ended, message
        if message["type"] == "http.response.start":
            assert not self.status, "a reply begins once"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            assert self.status
            self.pieces.append(message.get("body", b""))
            self.ended = not message.get("more_body", False)


class Client:
    """A client's side of one connection; `left` makes it disconnect."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces) or [b""]
        self.left = asyncio.Event()
        self.reply = Reply()

    async def receive(self) -> Message:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}


def scope(method: str, path: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
    given = {"host": "localhost:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    given |= {"content-length": str(len(body))} if method == "POST" else {}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    path, _, query = path.partition("?")
    raw = {"raw_path": path.encode(), "query_string": query.encode(), "server": SERVER}
    return {"type": "http", "method": method, "path": path, "headers": pairs, **raw}


async def ask(app: App, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(data)
    await app(scope(method, path, data, **headers), client.receive, client.reply.take)
    return client.reply


@asynccontextmanager
async def living(app: App) -> AsyncIterator[list[str]]:
    """Start an application and end it after the block; yield the types of its messages."""
    sent, inbox = list[str](), asyncio.Queue[Message]()

    async def send(message: Message) -> None:
        sent.append(message["type"] + message.get("message", ""))

    inbox.put_nowait({"type": "lifespan.startup"})
    running = asyncio.create_task(app({"type": "lifespan"}, inbox.get, send))  # type: ignore[arg-type]
    while not sent:
        await asyncio.wait((running,), timeout=0.02)
    try:
        yield sent
    finally:
        inbox.put_nowait({"type": "lifespan.shutdown"})
        await running
