"""A llama-server in this process that answers every prompt with the same text."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TIMINGS = {"prompt_n": 3, "prompt_ms": 1.0, "predicted_ms": 2.0}


class FakeLlama:
    """Sends `events` for each prompt and keeps the request bodies in `bodies`."""

    def __init__(self) -> None:
        self.bodies = list[dict[str, Any]]()
        self.refuses = False
        self.props: Any = {"model_path": "/somewhere/model-q4.gguf", "build_info": "b1"}
        self.events: list[Mapping[str, Any]] = [
            {"content": "    return x", "tokens": [5, 6], "stop": False},
            {"content": "\n    more", "tokens": [7], "stop": False},
            {"content": "", "tokens": [], "stop": True, "truncated": False, "timings": TIMINGS},
        ]
        llama = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                models = {"data": [{"id": "m", "meta": {"n_params": 5_000_000}}]}
                self._send(json.dumps(llama.props if self.path == "/props" else models))

            def do_POST(self) -> None:
                llama.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if llama.refuses:
                    self._send(json.dumps({"error": {"code": 400, "message": "the prompt is too long"}}), 400)
                else:
                    self._send("".join(f"data: {json.dumps(event)}\n\n" for event in llama.events))

            def _send(self, text: str, status: int = 200) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    """A server that runs until the test ends."""
    served = FakeLlama()
    thread = threading.Thread(target=served.server.serve_forever, daemon=True)
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()
