"""`codespec serve` with its log on a full disk, or with a long log."""

from __future__ import annotations

import json
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS, start, user_environment
from tests.lsp.test_daemon_process import free_port
from tests.server.daemons import wait_for
from tests.server.forked import start_forked

PATH = "/v1/codespec/complete"
BODY = {"prefix": "def f(x):\n", "max_tokens": 8, "shape": "raw"}


def without_room() -> None:
    """Limit files to a few bytes, like a full disk; sockets still work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, reply.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


@contextmanager
def logging_to(log: Path, *words: str | Path, **settings: Any) -> Iterator[tuple[Any, int]]:
    """Run a ready daemon whose output goes to a file; yield the process and its port."""
    port = free_port()
    with ExitStack() as stack:
        out = stack.enter_context(log.open("a+b"))
        command: tuple[str | Path, ...] = ("serve", "--port", str(port), *words)
        if "preexec_fn" in settings:
            one: Any = stack.enter_context(start(*command, stdout=out, stderr=out, **settings))
        else:
            one = stack.enter_context(start_forked(*command, output=out, **settings))
        try:
            assert wait_for(lambda: one.poll() is not None or ask(port, "GET", "/health")[0] == 200)
            assert one.poll() is None
            yield one, port
        finally:
            one.kill()


@pytest.mark.parametrize("device", [True, False])
def test_a_full_disk_ends_no_daemon(device: bool, models: Models, tmp_path: Path) -> None:  # noqa: F811
    """It can write neither output nor files, but serves, reports this, and ends in order."""
    homes = user_environment(XDG_STATE_HOME=str(tmp_path / "state"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    settings = {} if device else {"preexec_fn": without_room}
    log = Path("/dev/full") if device else tmp_path / "log"
    pair = [*models.pair, "--warmup", "0", "--access-log"]
    with logging_to(log, *pair, env=homes, **settings) as (process, port):
        status, events = ask(port, "POST", PATH, BODY)
        assert status == 200 and b'"finish_reason"' in events
        assert ask(port, "POST", PATH, {"prefix": 3})[0] == 400
        warning = json.loads(ask(port, "GET", "/health")[1])["warning"]
        assert warning.startswith("The daemon's log can't be written (") and "make room" in warning
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_what_can_not_be_kept_is_told(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """A cache path that is not a folder, and a log with enough space."""
    (tmp_path / "cache").write_text("")
    homes = user_environment(XDG_STATE_HOME=str(tmp_path / "state"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    with logging_to(tmp_path / "log", *models.flags, env=homes) as (_, port):
        warning = json.loads(ask(port, "GET", "/health")[1])["warning"]
    assert f"can't be saved in {tmp_path / 'cache'}" in warning and warning.endswith("; make room there.")


def test_a_log_has_a_bound(models: Models, tmp_path: Path) -> None:  # noqa: F811
    log, sizes = tmp_path / "log", []
    with logging_to(log, *models.flags, "--access-log", "--log-kb", "2") as (process, port):
        assert json.loads(ask(port, "GET", "/health")[1])["warning"] == ""
        for _ in range(150):
            assert ask(port, "GET", "/health")[0] == 200
            sizes.append(log.stat().st_size)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    message = log.read_text()
    assert 1000 < max(sizes) <= 2000
    assert message.startswith("codespec: older lines were dropped here\n")
    assert message.splitlines()[-1].startswith("codespec: stopping")


def test_a_mistake_keeps_its_code_where_nothing_can_be_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        open("/dev/full", "wb") as full,
        start_forked("serve", "--port", str(taken.getsockname()[1]), output=full) as process,
    ):
        assert process.wait(SECONDS) == 2
