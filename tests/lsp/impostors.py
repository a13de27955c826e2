"""Foreign programs on a daemon's port that record every byte they receive."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from codespec.client.proof import PATH

SECONDS = 60
Reply = tuple[int, Mapping[str, str], bytes]
Answer = Callable[[str, str, bytes], Reply]  # from method, path and body

STATS = {"daemon": {"version": "0", "state": "ready", "model": "toy"}, "families": []}
TEXT, DONE = {"text": "1", "choice": 0}, {"choice": 0, "finish_reason": "stop"}
EVENTS = f"event: text\ndata: {json.dumps(TEXT)}\n\nevent: done\ndata: {json.dumps(DONE)}\n\n".encode()


class Impostor:
    """An HTTP server that replies with `answer` and records requests in `heard`."""

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.heard: list[bytes] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler(answer))
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __contains__(self, text: str) -> bool:
        return text.encode() in b"\n".join(self.heard)

    @property
    def asked(self) -> list[str]:
        """Method and path of each request."""
        return [b" ".join(request.split(b" ", 2)[:2]).decode() for request in self.heard]

    def _handler(self, answer: Answer) -> type[BaseHTTPRequestHandler]:
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = SECONDS

            def reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                heard.append(f"{self.requestline}\n{self.headers}".encode() + body)
                status, headers, data = answer(self.command, self.path, body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = reply

            def log_message(self, *_: object) -> None:
                """Suppress logging."""

        return Handler


@contextmanager
def impostor(answer: Answer, port: int = 0) -> Iterator[Impostor]:
    """Run an impostor."""
    one = Impostor(answer, port)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join(SECONDS)


def knows_nothing(_method: str, _path: str, _body: bytes) -> Reply:
    """Answer like an unrelated server: 404."""
    return 404, {}, b"not found"


def plays_daemon(_method: str, path: str, _body: bytes) -> Reply:
    """Answer every request with success, and the proof with made-up values."""
    if path == PATH:
        return 200, {}, json.dumps({"at": "127.0.0.1:1", "by_secret": "0" * 64, "by_token": "0" * 64}).encode()
    if path.endswith("/complete"):
        return 200, {"Content-Type": "text/event-stream"}, EVENTS
    return 200, {}, json.dumps({"status": "ok", "version": "0", **STATS}).encode()


def sends_on(port: int) -> Answer:
    """Return an answer that redirects to another port."""
    return lambda _method, path, _body: (307, {"Location": f"http://127.0.0.1:{port}{path}"}, b"")


def relays(port: int) -> Answer:
    """Return an answer that forwards proof requests to the real daemon at another port."""

    def answer(method: str, path: str, body: bytes) -> Reply:
        if path != PATH:
            return plays_daemon(method, path, body)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, {}, reply.read()
        finally:
            connection.close()

    return answer
