"""`codespec serve` as a real process: it listens at once, drains on a signal, and reports errors in one sentence."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LONG, Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS, TOKEN, TestedProcess, start
from tests.server.daemons import wait_for
from tests.server.forked import Forked, run_forked, start_forked


class Process:
    """A running daemon."""

    def __init__(self, process: TestedProcess | Forked) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        match = re.fullmatch(r"codespec: listening on http://([\d.]+):(\d+)\n", line)
        assert match, line + (process.stderr.read().decode() if process.stderr else "")
        self.host = "127.0.0.1" if match[1] == "0.0.0.0" else match[1]
        self.port = int(match[2])

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {name.replace("_", "-"): v for name, v in headers.items()})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def open(self, path: str, body: object) -> http.client.HTTPConnection:
        """Send a POST request and leave the reply unread."""
        return self.open_as(path, body, {})

    def open_as(self, path: str, body: object, headers: Mapping[str, str]) -> http.client.HTTPConnection:
        """Like `open`, with headers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, dict(headers))
        return connection

    def num_open(self) -> int:
        """Return the number of running and queued requests."""
        return int(json.loads(self.ask("GET", "/health")[1])["open"])

    def until_ready(self) -> None:
        assert wait_for(lambda: self.ask("GET", "/health")[0] == 200)

    def end(self, *signals: int) -> tuple[int, str, str]:
        """Wait for the end; return exit code, the rest of stdout, and stderr."""
        for number in signals:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out.decode(), (err or b"").decode()


@contextmanager
def daemon(*words: str | Path, forked: bool = True, **settings: Any) -> Iterator[Process]:
    """Start `codespec serve`, forked unless its start is tested or it needs more than an environment."""
    begin: Any = start_forked if forked and not settings.keys() - {"env"} else start
    with begin("serve", "--port", "0", *words, **settings) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


def test_from_start_to_end(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """It listens while it loads, serves on both sockets, finishes open requests, exits with 0 and leaves no socket."""
    place = tmp_path / "codespec.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place))
    words = (*models.flags, "--socket", place, "--access-log", "--drain-seconds", "300")
    with daemon(*words, forked=False) as served:
        status, body = served.ask("GET", "/health")
        assert status == 200 or "starting" in json.loads(body)["error"]["message"]
        served.until_ready()
        assert place.stat().st_mode & 0o777 == 0o600
        assert over_unix(place, "/health").startswith(b"HTTP/1.1 200")
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        body = json.dumps({"prefix": "def f(x):\n", "max_tokens": 120, "shape": "raw"})
        connection.request("POST", "/v1/codespec/complete", body)
        reply = connection.getresponse()
        first = reply.read1(100)
        served.process.send_signal(signal.SIGTERM)
        assert first and b'"finish_reason":"length"' in reply.read()
        connection.close()
        code, out, err = served.end()
    assert (code, out.splitlines()[-1].startswith("codespec: stopping")) == (0, True)
    assert "POST /v1/codespec/complete 200" in err and "def f" not in err and "Traceback" not in err
    assert not place.exists()


def over_unix(place: Path, path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(place))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return connection.recv(4096)


def test_a_second_signal_ends_at_once(models: Models) -> None:  # noqa: F811
    with daemon(*models.flags, "--drain-seconds", "600") as served:
        served.until_ready()
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        body = json.dumps({"prefix": "def f(x):\n", "max_tokens": LONG, "shape": "raw", "speculate": False})
        connection.request("POST", "/v1/codespec/complete", body)
        assert connection.getresponse().read1(10)
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert served.process.poll() is None
        code, _, err = served.end(signal.SIGINT)
        connection.close()
    assert code == 130 and "Traceback" not in err


def test_a_signal_while_loading_ends_it() -> None:
    with daemon(forked=False) as served:
        code, _, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err


def test_models_that_do_not_load_are_one_sentence(tmp_path: Path) -> None:
    with daemon("--target", tmp_path / "none") as served:
        code, _, err = served.end()
    assert code == 2 and err.startswith("codespec: There is no model folder") and err.count("\n") == 1


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_forked("serve", "--port", str(port))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"Port {port} of 127.0.0.1 is in use" in done.stderr and "--port" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--port", "99999"], "port = 99999 is too large: it must be at most 65535"),
        (["--token-file", "none"], "can't be read"),
        (["--host", "192.0.2.1", "--token-file", "token"], "can't listen on"),
        (["--socket", "token", "--port", "0"], "is not a socket"),
    ],
)
def test_what_can_not_be_served_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.chdir(tmp_path)
    done = run_forked("serve", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sentence in done.stderr and TOKEN not in done.stderr


def test_a_socket_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        done = run_forked("serve", "--port", "0", "--socket", tmp_path / "s")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "is in use" in done.stderr
