"""The daemon's timeouts for clients: for a whole body, for the next request, and for its own output to be read.

The process is real; its limits are checked in the source and set to one second here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codespec.server import app, wire
from tests.cli.processes import SECONDS
from tests.server.daemons import wait_for
from tests.server.forked import start_forked
from tests.server.test_process import Process

PATH = "/v1/codespec/complete"
MAX_PATIENCE = 120.0
WAIT = 40.0  # seconds to wait for events due after one second
# An engine that writes megabytes, more than the buffers between a daemon and its client hold.
LOUD = """
from codespec.server import app, wire
from codespec.server.engine_thread import EngineThread
from codespec.server.daemon import Loaded
from codespec.api.config import ServeConfig
from codespec.api.types import TextEvent
from tests.server.fakes import FakeEngine

class LoudEngine(FakeEngine):
    def step(self, *only):
        super().step(*only)
        for sequence in self.running:
            sequence.events.append(TextEvent(sequence.choice, "x" * (1 << 20)))

app.IDLE_SECONDS = wire.READ_SECONDS = wire.WRITE_SECONDS = 1.0
config = ServeConfig(port=0, drain_seconds=2 * {seconds})
raise SystemExit(app.serve(EngineThread(lambda _: Loaded.of(LoudEngine(), "toy", 512, 4)), config))
"""


@pytest.fixture
def served() -> Iterator[Process]:
    with start_forked("-c", LOUD.format(seconds=SECONDS)) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


@contextmanager
def connection(served: Process, data: bytes, buffer: int = 1 << 16) -> Iterator[socket.socket]:
    """Open a connection and send `data`."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        one.settimeout(WAIT)
        one.connect(("127.0.0.1", served.port))
        one.sendall(data)
        yield one


def post(body: bytes, length: int) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body


@pytest.mark.parametrize("seconds", [app.IDLE_SECONDS, wire.READ_SECONDS, wire.WRITE_SECONDS])
def test_patience_ends(seconds: float) -> None:
    assert 1 <= seconds <= MAX_PATIENCE


def test_a_body_that_does_not_come_whole(served: Process) -> None:
    with connection(served, post(b'{"prefix"', 1000)) as half:
        told = half.recv(1 << 16)
    assert told.startswith(b"HTTP/1.1 408") and b"The body did not arrive within 1 s" in told


def test_a_connection_without_another_request(served: Process) -> None:
    with connection(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as idle:
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 ")
        assert idle.recv(1 << 16) == b""


def is_held(served: Process, client: socket.socket) -> bool:
    """Return whether the daemon still has its end of a connection."""
    ends = f":{served.port:04X}", f":{client.getsockname()[1]:04X}"
    established = [line.split()[1:3] for line in Path("/proc/net/tcp").read_text().splitlines() if " 01 " in line]
    return any(here.endswith(ends[0]) and there.endswith(ends[1]) for here, there in established)


def test_a_client_that_does_not_read(served: Process) -> None:
    """The daemon closes the connection while it runs, not only at its own end."""
    served.until_ready()
    body = json.dumps({"prefix": "x", "max_tokens": 40, "shape": "raw"}).encode()
    with connection(served, post(body, len(body)), 4096) as deaf:
        assert deaf.recv(12) == b"HTTP/1.1 200" and is_held(served, deaf)
        assert wait_for(lambda: not is_held(served, deaf), WAIT)
    assert served.ask("GET", "/health")[0] == 200
