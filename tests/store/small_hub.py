"""A small model hub on loopback for the real client: one repository, with failures on request.

It serves the two kinds of requests of a pull (the repository's description; a file, or the rest of one) and records
each.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 1 << 16


@dataclass
class SmallHub:
    """The repository's files and the hub's behaviour.

    cut       a file's connection is closed after this many bytes; the hub then answers 503 until `broken` is reset
    hold      a file pauses after this many bytes until `go` is set; `held` is set while it waits
    refusal   a status and the hub's own error code, sent instead of every answer
    lies      hashes to state instead of the true ones
    more      further entries of the file list
    """

    repository: str
    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    hold: dict[str, int] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    gated: bool = False
    lies: dict[str, str] = field(default_factory=dict)
    more: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, int]] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    revisions: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    url: str = ""

    def asked_for(self, file: str) -> list[int]:
        """Return the first byte of each request for a file."""
        return [begin for name, begin in self.requests if name == file]

    def description(self) -> dict[str, Any]:
        """Return the hub's description of the repository."""
        siblings = [self._sibling(name, data) for name, data in self.files.items()]
        card = {"license": "other", "license_name": "tiny-1.0"}
        return {"id": self.repository, "sha": COMMIT, "cardData": card, "siblings": [*siblings, *self.more]}

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        stated: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": self.lies.get(name, blob)}
        if name.endswith(".safetensors"):
            digest = self.lies.get(name, hashlib.sha256(data).hexdigest())
            stated["lfs"] = {"size": len(data), "sha256": digest, "pointerSize": 130}
        return stated


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: SmallHub

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.agents.add(self.headers["User-Agent"] or "")
        file = path.removeprefix(f"/{hub.repository}/resolve/{COMMIT}/")
        if hub.refusal:
            self._refuse(*hub.refusal)
        elif found := re.fullmatch(f"/api/models/{hub.repository}(?:/revision/(.*))?", path):
            hub.revisions.append(found[1] or "")
            self._answer(200, json.dumps(hub.description()).encode())
        elif file not in hub.files:
            self._refuse(404, "RepoNotFound")
        elif hub.gated:
            self._refuse(401, "GatedRepo")
        elif hub.broken:
            self._refuse(503, "")
        else:
            self._send_file(file)

    def _send_file(self, file: str) -> None:
        hub, data = self.hub, self.hub.files[file]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        begin = int(asked[1]) if asked else 0
        hub.requests.append((file, begin))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        for at in range(begin, len(data), BLOCK):
            if file in hub.cut and at >= hub.cut[file]:
                hub.broken, self.close_connection = True, True
                return
            if file in hub.hold and at >= hub.hold[file]:
                hub.held.set()
                hub.go.wait(60)
            self.wfile.write(data[at : at + BLOCK])

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code} if code else {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress logging."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: some tests kill the client."""


@contextmanager
def serving(hub: SmallHub) -> Iterator[SmallHub]:
    """Serve the hub on a free loopback port."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
