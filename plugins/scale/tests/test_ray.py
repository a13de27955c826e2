"""Replicas as a user starts them: `codespec scale up` with tiny models, one replica killed under load.

Ray takes about a minute, so these are part of `make test-full`. Skipped where Ray is not installed.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from codespec_scale.relay import CUT, NONE_ANSWERS

from tests.cli.conftest import LONG, Models, models, plain_environment  # noqa: F401
from tests.cli.processes import SECONDS, start, start_python, user_environment
from tests.server.daemons import wait_for

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ./plugins/scale"
    ),
]
STREAMS, TOKENS = 30, 300
COMPLETE = "/v1/codespec/complete"
WORDS = ("--warmup", "0", "--no-prefetch", "--threads", "1", "--queue", "100")
NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
UPDATE = """
import json, sys
import ray
from ray import serve
from codespec_scale.application import app
settings = json.loads(sys.argv[1])
ray.init(address="auto", logging_level="error")
serve.run(app(settings), name="codespec")
"""


@dataclass
class Up:
    """A running `codespec scale up`."""

    port: int
    model: str

    def open(self, method: str, path: str, body: Any = None, session: str = "") -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"x-session-id": session} if session else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection

    def replica(self, session: str) -> str:
        """Return the name of the replica that answers a session, or "" if none does."""
        with closing(self.open("GET", "/health", session=session)) as connection:
            reply = connection.getresponse()
            reply.read()
            return reply.headers.get("x-codespec-replica") or "" if reply.status == 200 else ""

    def stream(self, number: int, prefix: str = "") -> tuple[str, str]:
        """Return a whole stream's text and its error."""
        body = {"prefix": f"{prefix}def f{number}(x):\n", "max_tokens": TOKENS, "shape": "raw", "temperature": 0.0}
        with closing(self.open("POST", COMPLETE, body, session=f"document {number}")) as connection:
            reply = connection.getresponse()
            return (
                read_events(reply.read()) if reply.status == 200 else ("", json.loads(reply.read())["error"]["message"])
            )

    def daemons(self) -> list[int]:
        """Return the ids of the replicas' daemons."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"serve" in words and self.model.encode() in words and b"scale" not in words and state != "Z":
                found.append(int(folder.name))
        return [pid for pid in found if parent(pid) not in found]  # its own children have the same words


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def read_events(body: bytes) -> tuple[str, str]:
    """Return text and error of a stream, which ends with exactly one of `done` and `error`."""
    assert body.endswith(b"\n\n")
    text, ends, error = "", 0, ""
    for block in body.decode().split("\n\n")[:-1]:
        name, data = block.removeprefix("event: ").split("\ndata: ")
        assert not ends, "nothing follows the end"
        if name == "text":
            text += json.loads(data)["text"]
        ends += name in ("done", "error")
        error = json.loads(data)["message"] if name == "error" else error
    assert ends == 1
    return text, error


@contextmanager
def scaled(models: Models, replicas: int, port: int) -> Iterator[Up]:  # noqa: F811
    words = ("--replicas", str(replicas), "--port", str(port), *models.flags[:4], *WORDS)
    with start("scale", "up", *words, env=user_environment(**NO_STATISTICS), stderr=None) as process:
        assert process.stdout is not None
        assert any(b"replicas ready on" in line for line in process.stdout), "it did not start"
        yield Up(port, str(models.target))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0


@pytest.fixture(scope="module")
def up(models: Models) -> Iterator[Up]:  # noqa: F811
    with scaled(models, 2, 8131) as found:
        yield found


def test_a_document_stays_at_its_replica(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    sessions = [f"document {number}" for number in range(20)]
    first = {session: up.replica(session) for session in sessions}
    assert len(set(first.values())) == 2, "both replicas have documents"
    same = [up.replica(session) == first[session] for session in sessions for _ in range(10)]
    with capsys.disabled():
        print(f"\n{sum(same)} of {len(same)} requests at their document's replica")
    assert sum(same) >= 0.95 * len(same)


def test_a_client_that_leaves_ends_its_work(up: Up) -> None:
    def num_open() -> int:
        with closing(up.open("GET", "/health", session="leaves")) as connection:
            return int(json.loads(connection.getresponse().read())["open"])

    body = {"prefix": "x = ", "max_tokens": LONG, "shape": "raw", "speculate": False}
    connection = up.open("POST", COMPLETE, body, session="leaves")
    assert connection.getresponse().read1(10) and num_open() == 1
    connection.close()
    assert wait_for(lambda: num_open() == 0)


def test_one_page_has_the_metrics_of_all_replicas(up: Up) -> None:
    with closing(up.open("GET", "/metrics")) as connection:
        page = connection.getresponse().read().decode()
    states = re.findall(r'^codespec:state\{replica="(\w+)",state="ready"\} 1.0$', page, re.MULTILINE)
    assert len(set(states)) == len(states) == 2, page
    assert page.count("# TYPE codespec:state ") == 1


def test_a_replica_killed_under_load(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """Every stream ends with the whole right text or one clear error, and all documents are served within seconds."""
    with ThreadPoolExecutor(STREAMS) as pool:
        right = list(pool.map(up.stream, range(STREAMS)))
        assert not any(error for _, error in right)
        running = [pool.submit(up.stream, number) for number in range(STREAMS)]
        time.sleep(1.0)
        assert sum(one.done() for one in running) < STREAMS, "the streams are still running"
        victim = up.daemons()[0]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        again = [up.replica(f"document {number}") for number in range(STREAMS)]
        moved = time.monotonic() - killed
        found = [one.result(SECONDS) for one in running]
        assert all(again)
        assert wait_for(lambda: len({up.replica(f"document {number}") for number in range(STREAMS)} - {""}) == 2, 60)
        back = time.monotonic() - killed
    cut = [error for text, error in found if error]
    for (text, error), (whole, _) in zip(found, right, strict=True):
        assert (error in (CUT, NONE_ANSWERS) and whole.startswith(text)) if error else text == whole
    with capsys.disabled():
        print(f"\n{len(cut)} of {STREAMS} cut; documents moved after {moved:.1f} s, two replicas after {back:.1f} s")
    assert len(cut) < STREAMS


def test_an_update_drops_no_stream(up: Up, models: Models) -> None:  # noqa: F811
    """Other settings are deployed while streams run: all end with the whole text, and both replicas are new."""
    sessions = [f"document {number}" for number in range(STREAMS)]
    before = {up.replica(session) for session in sessions}
    settings = {"replicas": 2, "target": str(models.target), "drafter": str(models.drafter), "warmup": 0}
    settings |= {"threads": 1, "prefetch": False, "queue": 100, "max_batch": 8}
    with ThreadPoolExecutor(STREAMS) as pool:
        right = list(pool.map(up.stream, range(STREAMS)))
        with start_python("-c", UPDATE, json.dumps(settings), env=user_environment(**NO_STATISTICS)) as process:
            found = []
            while process.poll() is None:
                found.append(list(pool.map(up.stream, range(STREAMS))))
            _, err = process.communicate()
            assert process.returncode == 0, err.decode()
        found.append(list(pool.map(up.stream, range(STREAMS))))
    assert all(one == right for one in found), [error for one in found for _, error in one if error]
    assert wait_for(lambda: not before & {up.replica(session) for session in sessions}, 60)
