"""Faults around a real daemon: killed processes, damaged files, a full disk, an engine that dies."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench.daemon import connect

from codespec.errors import DaemonError
from tests.cli.conftest import LONG, Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS, user_environment
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine
from tests.server.forked import start_forked
from tests.server.test_jobs import PATH, body, ends_of
from tests.server.test_process import Process, daemon, over_unix

ENDLESS = {"prefix": "def f(x):\n", "max_tokens": LONG, "shape": "raw", "speculate": False}
DYING = """
from codespec.cli import run_to_exit_code
from codespec.engine.queue import Queue
from codespec.server.engine_thread import EngineThread
from codespec.server.app import serve
from codespec.server.daemon import Loaded
from codespec.api.config import ServeConfig
from tests.server.fakes import FakeEngine

class Panic(BaseException):
    pass

def broken(queue, job):
    raise KIND("no")

engine = FakeEngine()
Queue.restart = broken
thread = EngineThread(lambda _: Loaded.of(engine, "toy", 512, 4))
raise SystemExit(run_to_exit_code(lambda: serve(thread, ServeConfig(port=0))))
"""


@pytest.mark.parametrize("kind", ["OSError", "Panic"])
def test_an_engine_that_dies_ends_the_daemon(kind: str) -> None:
    """Every client gets an error, and a supervisor can start another daemon.

    A panic in a library such as tokenizers is not an Exception.
    """
    with start_forked("-c", DYING.replace("KIND", kind)) as process:
        served = Process(process)
        served.until_ready()
        status, told = served.ask("POST", PATH, body("BOOM"))
        assert status == 200 and f"The engine has stopped ({kind}): restart the daemon.".encode() in told
        code, _, err = served.end()
    assert code == 2 and err.splitlines()[-1] == f"codespec: The engine has stopped ({kind}): restart the daemon."


@pytest.fixture
def pair(models: Models, tmp_path: Path) -> Models:  # noqa: F811
    """Return a pair that may be deleted."""
    target, drafter = (
        Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in (models.target, models.drafter)
    )
    return replace(models, target=target, drafter=drafter)


def test_killed_restarted_damaged_and_without_room(
    pair: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consecutive runs with the same files; see the steps."""
    place, folder = tmp_path / "s", tmp_path / "state" / "codespec" / "acceptance"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # the client must know the daemon's secret
    homes = user_environment(XDG_STATE_HOME=str(tmp_path / "state"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    words: list[Any] = [*pair.pair, "--warmup", "0", "--socket", place]
    with daemon(*words, env=homes) as served:  # killed in mid-stream
        served.until_ready()
        assert asyncio.run(_read_until_killed(served)).startswith("The daemon closed")
    assert place.exists() and not list(folder.glob("*"))
    with daemon(*words, env=homes) as served:  # finds the dead one's socket, and saves its statistics
        served.until_ready()
        assert over_unix(place, "/health").startswith(b"HTTP/1.1 200")
        assert served.ask("POST", PATH, {**ENDLESS, "max_tokens": 20, "speculate": True})[0] == 200
        assert served.end(signal.SIGTERM)[0] == 0
    (kept,) = folder.glob("*.json")
    half = kept.read_bytes()[:20]
    kept.write_bytes(half)  # as after a power loss
    with daemon(*words, env=homes, preexec_fn=_without_room) as served:
        served.until_ready()
        shutil.rmtree(pair.target)
        assert served.ask("POST", PATH, {**ENDLESS, "max_tokens": 20, "speculate": True})[0] == 200
        code, _, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err
    assert "can't be read" in err and "it is learned again" in err and "can't be saved in" in err
    assert [file.read_bytes() for file in folder.iterdir()] == [half], "what did not fit is gone, what was there is not"
    with daemon(*words, env=homes) as served:
        code, _, err = served.end()
    assert code == 2 and err.count("\n") == 1 and "There is no model folder" in err


def _without_room() -> None:
    """Limit files to a few bytes, like a full disk; sockets and pipes still work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, 32))


async def _read_until_killed(served: Process) -> str:
    """Return the client's message when the daemon is killed."""

    async def kill() -> None:
        await asyncio.sleep(0.3)
        served.process.kill()

    async with connect(f"http://127.0.0.1:{served.port}") as client:
        killing = asyncio.create_task(kill())
        with pytest.raises(DaemonError) as caught:
            await client.complete(ENDLESS)
        await killing
    return str(caught.value)


def test_a_client_that_reads_slowly_holds_no_slot() -> None:
    """The engine continues with the next request; unread data waits with the connection."""
    with serving(FakeEngine(), slots=1) as served:
        data = json.dumps(body("slow reader", max_tokens=2000)).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            slow.sendall(head + data)
            for number in range(5):
                assert slow.recv(1)
                assert ends_of(served.post(PATH, body(f"eager {number}"))) == ["length"]
