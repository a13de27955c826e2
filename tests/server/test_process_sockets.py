"""Sockets of real daemons: more connections than allowed open files, and two daemons at one path."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS, start
from tests.server.forked import start_forked
from tests.server.test_process import Process, daemon, over_unix

FILES = 160
FLOOD = 2 * FILES
HALF = b"POST /v1/codespec/complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


def with_few_files(number: int) -> None:
    """Limit open files, as with `ulimit -n`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


@contextmanager
def flood(served: Process) -> Iterator[None]:
    """Open connections that send nothing, and some that send part of a request."""
    with ExitStack() as stack:
        for number in range(FLOOD):
            one = stack.enter_context(socket.create_connection((served.host, served.port), timeout=SECONDS))
            if number % 2:
                one.sendall(HALF)
        yield


def test_more_connections_than_files(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """While it loads and when it is ready: it still answers /health, and reports the limit in one line."""
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        daemon(*models.flags, stderr=file, preexec_fn=partial(with_few_files, FILES)) as served,
    ):
        with flood(served):
            assert served.ask("GET", "/health")[0] in (200, 503)
            served.until_ready()
        with flood(served):
            for _ in range(20):
                assert served.ask("GET", "/health")[0] == 200
            status, message = served.ask("POST", "/v1/codespec/complete", {"prefix": "x", "max_tokens": 2})
            assert status == 200 and b'"finish_reason"' in message
        served.end(signal.SIGTERM)
    lines = log.read_text().splitlines()
    assert len([line for line in lines if "connections are open" in line]) == 1, lines
    assert not [line for line in lines if "Traceback" in line or "Too many open files" in line], lines


def test_too_few_files_are_one_sentence() -> None:
    with start("serve", "--port", "0", preexec_fn=partial(with_few_files, 64)) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err.count(b"\n")) == (2, b"", 1) and b"ulimit -n" in err


def test_an_older_daemons_end_leaves_a_newer_ones_socket(tmp_path: Path) -> None:
    """The socket was removed, or the older daemon was still finishing requests, when the newer one created its own."""
    place = tmp_path / "s"
    with daemon("--socket", place) as older:
        assert older.process.stdout is not None and older.process.stdout.readline().endswith(b"s\n")
        place.unlink()
        with daemon("--socket", place) as newer:
            assert newer.process.stdout is not None and newer.process.stdout.readline().endswith(b"s\n")
            assert older.end(signal.SIGTERM)[0] == 0
            assert b"HTTP/1.1" in over_unix(place, "/health")
            assert newer.end(signal.SIGTERM)[0] == 0
    assert not place.exists(), "the newer one removed its own"


def test_a_holder_that_never_accepts_holds_up_no_start(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as holder, ExitStack() as stack:
        holder.bind(str(place))
        holder.listen(0)
        fill(str(place), stack)
        check_in_use(place)
        assert place.is_socket()


def fill(place: str, stack: ExitStack) -> None:
    """Connect until no connection is accepted."""
    for _ in range(1000):
        one = stack.enter_context(socket.socket(socket.AF_UNIX))
        one.setblocking(False)
        try:
            one.connect(place)
        except BlockingIOError:
            return
    raise AssertionError("there was always room")


def test_daemons_at_one_path_take_turns(tmp_path: Path) -> None:
    """A new daemon replaces a dead one's socket with its own, which is not mistaken for the dead one's."""
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with start_forked("serve", "--port", "0", "--socket", place) as second, socket.socket(socket.AF_UNIX) as first:
            assert second.stdout is not None and b"listening on http" in second.stdout.readline()
            place.unlink()
            first.bind(str(place))
            made = place.stat()
            first.listen()
            fcntl.flock(handle, fcntl.LOCK_UN)
            _, err = second.communicate(timeout=SECONDS)
            assert second.returncode == 2 and b"is in use: stop the other daemon" in err, err
            assert os.path.samestat(place.stat(), made)
    finally:
        os.close(handle)


def test_a_folder_that_stays_locked_holds_up_no_start(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with start_forked("serve", "--port", "0", "--socket", tmp_path / "s") as process:
            _, err = process.communicate(timeout=SECONDS)
    finally:
        os.close(handle)
    assert process.returncode == 2 and f"Another process has locked {tmp_path}: choose".encode() in err, err


def check_in_use(place: Path) -> None:
    with start_forked("serve", "--port", "0", "--socket", place) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err.count(b"\n")) == (2, 1) and b"is in use: stop the other daemon" in err, err


def test_a_link_is_no_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "of others"))
    (tmp_path / "s").symlink_to(tmp_path / "of others")
    with start_forked("serve", "--port", "0", "--socket", tmp_path / "s") as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2 and b"exists and is not a socket" in err, err
    assert (tmp_path / "of others").exists()
