"""An ASGI middleware for Ray's HTTP proxy: if a replica dies, its clients get at most one clear error each.

If the client has not yet received a byte of the reply, the middleware repeats the request once. It sends a reply that
is not a stream only when the reply is complete. An interrupted stream ends with an error event after the last complete
event. Without the middleware, Ray would answer 500 or close the connection in the middle of an event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from codespec.api.limits import MAX_BODY

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REPLICA = b"x-codespec-replica"  # a header that every replica sends, and that Ray's own errors lack
RETRY_SECONDS = 0.1  # until Ray's router has noticed that a replica is dead
COMPLETE = "/v1/codespec/complete"
BETWEEN = {b"text/event-stream": b"\n\n", b"application/x-ndjson": b"\n"}  # end of an event by content type
CUT = "The replica ended before this text was complete: try again."
NONE_ANSWERS = "No replica answers: try again in a moment."
TOO_LARGE = f"The body must be at most {MAX_BODY} bytes: send less text."


class Relay:
    """The middleware around Ray's proxy."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request. Other connections are passed on unchanged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(receive)
        if not await request.read():
            await reply_error(send, 413, TOO_LARGE)
            return
        for _ in range(2):
            attempt = Attempt(str(scope["path"]), send)
            await self._app({**scope, "headers": [*scope["headers"]]}, request.repeat(), attempt.take)
            if attempt.ended or request.gone:
                return
            if attempt.begun:
                await attempt.cut()
                return
            await asyncio.sleep(RETRY_SECONDS)
        await reply_error(send, 503, NONE_ANSWERS)


class Request:
    """The body of a request, stored for a second attempt. `gone` is true after the client has disconnected."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body = bytearray()
        self.gone = False

    async def read(self) -> bool:
        """Read the whole body, and return whether its size is within the limit."""
        more = True
        while more and not self.gone:
            message = await self._receive()
            self.gone = message["type"] == "http.disconnect"
            self._body += message.get("body", b"")
            more = bool(message.get("more_body", False))
            if len(self._body) > MAX_BODY:
                return False
        return True

    def repeat(self) -> Receive:
        """Return an ASGI `receive` function that yields the stored body first."""
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent and not self.gone:
                sent = True
                return {"type": "http.request", "body": bytes(self._body), "more_body": False}
            message = {"type": "http.disconnect"} if self.gone else await self._receive()
            self.gone = self.gone or message["type"] == "http.disconnect"
            return message

        return receive


class Attempt:
    """One attempt to answer a request. `begun`: a byte was sent to the client. `ended`: the whole reply was sent."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._start: Message | None = None
        self._kind = self._end = b""
        self._held = bytearray()
        self.begun = self.ended = False

    async def take(self, message: Message) -> None:
        """Handle one message of the reply. An error by Ray itself is dropped, so that the request can be repeated."""
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            if REPLICA in headers or int(message["status"]) < 500:
                self._start, self._kind = message, headers.get(b"content-type", b"").partition(b";")[0]
                self._end = BETWEEN.get(self._kind, b"")
        elif self._start is not None and message["type"] == "http.response.body":
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                self.ended = True
                await self._pass(len(self._held), more=False)
            elif self._end and (whole := self._held.rfind(self._end)) >= 0:
                await self._pass(whole + len(self._end), more=True)

    async def cut(self) -> None:
        """End an interrupted stream with an error event."""
        self._held[:] = _error_event(self._path, self._kind)
        await self._pass(len(self._held), more=False)

    async def _pass(self, count: int, *, more: bool) -> None:
        """Send the first `count` bytes of the buffer."""
        if not self.begun and self._start is not None:
            self.begun = True
            await self._send(self._start)
        body, self._held = bytes(self._held[:count]), self._held[count:]
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def middlewares() -> list[Any]:
    """Return the middlewares for Ray's setting RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH."""
    from starlette.middleware import Middleware

    return [Middleware(Relay)]


def _error_event(path: str, kind: bytes) -> bytes:
    """Format the error event for the protocol of the stream."""
    if kind == b"application/x-ndjson":
        return to_json({"error": CUT}) + b"\n"
    if path == COMPLETE:
        return b"event: error\ndata: " + to_json({"field": "", "message": CUT}) + b"\n\n"
    return b"data: " + to_json(_error(503, CUT)) + b"\n\n"


async def reply_error(send: Send, status: int, sentence: str) -> None:
    """Send an error that clients of all supported protocols understand."""
    body = to_json(_error(status, sentence))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", b"1")] if status == 503 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _error(status: int, sentence: str) -> Mapping[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"code": status, "message": sentence, "type": kind, "param": None, "field": ""}}


def to_json(value: Mapping[str, Any]) -> bytes:
    """Encode a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
