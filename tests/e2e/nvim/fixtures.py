"""Fixtures of the Neovim scenarios: each installed Neovim, a shared daemon, and a shared editor that is reset after
each.

`NEOVIMS` holds the paths of the programs, separated by colons.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nvim.editor import COMMAND, Editor, folders_of

PACE = Path(__file__).resolve().parents[1] / "pace.py"
PROGRAMS = os.environ["NEOVIMS"].split(":")
TROUBLE = re.compile(r"stack traceback|^E\d+:|Error (?:executing|detected)|codespec: ", re.MULTILINE)
Start = Callable[..., Editor]


class Daemon:
    """A real `codespec serve` with readable metrics."""

    def __init__(self, home: Path, *settings: str) -> None:
        folders = dict(folder.split("=", 1) for folder in folders_of(home))
        self.state, env = folders["XDG_STATE_HOME"], {**os.environ, **folders}
        self.process = subprocess.Popen(
            [COMMAND[0], "serve", "--port", "0", *settings], stdout=subprocess.PIPE, env=env, text=True
        )
        self.url = self._logged(r"listening on (\S+)")
        self._logged(r"(ready) after")

    def _logged(self, words: str) -> str:
        """Return the match in the next output line that contains the pattern."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(words, line):
                return found[1]
        raise AssertionError(f"the daemon ended with {self.process.wait(30)}: see the output above")

    def count(self, metric: str) -> float:
        """Return the sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(metric))

    def stop(self) -> None:
        """Stop the daemon."""
        self.process.terminate()
        self.process.communicate(timeout=30)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of editors and daemons."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def daemon(home: Path) -> Iterator[Daemon]:
    """Run a daemon for all scenarios except those that kill it."""
    daemon = Daemon(home)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def token_by_token(home: Path) -> Iterator[Daemon]:
    """Run a daemon without drafts from earlier text."""
    daemon = Daemon(home, "--proposers", "prediction")
    yield daemon
    daemon.stop()


@pytest.fixture
def slow_daemon(token_by_token: Daemon) -> Iterator[Daemon]:
    """Slow that daemon until its texts take seconds, on any machine: by processor time, as a big target would."""
    pace = subprocess.Popen([sys.executable, PACE, str(token_by_token.process.pid)], stdout=subprocess.PIPE)
    assert pace.stdout is not None and pace.stdout.readline() == b"stopped\n"
    yield token_by_token
    pace.terminate()
    pace.communicate(timeout=30)


@pytest.fixture(scope="session", params=PROGRAMS, ids=lambda path: Path(path).parents[1].name)
def program(request: pytest.FixtureRequest) -> str:
    """Return the path of a Neovim."""
    return str(request.param)


@pytest.fixture(scope="session")
def running(program: str, home: Path, daemon: Daemon) -> Iterator[Editor]:
    """Run an editor that many scenarios share."""
    editor = Editor(program, home, options={"settings": {"url": daemon.url, "startDaemon": False}})
    yield editor
    editor.close()


@pytest.fixture
def editor(running: Editor) -> Iterator[Editor]:
    """Return the shared editor without files; assert at the end that it showed no error."""
    yield running
    message = running.sweep()
    assert not TROUBLE.search(message), message


@pytest.fixture
def start(program: str, home: Path) -> Iterator[Start]:
    """Return a function that starts a separate editor."""
    editors: list[Editor] = []

    def begin(settings: Mapping[str, Any] | None = None, first: str = "", **options: Any) -> Editor:
        editors.append(Editor(program, home, options={"settings": dict(settings or {}), **options}, first=first))
        return editors[-1]

    yield begin
    for each in editors:
        each.close()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with version control."""
    (tmp_path / ".git").mkdir()
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port at which a language server may start a daemon; stop that daemon at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
    yield found
    for process in daemons_at(found):
        os.kill(process, signal.SIGTERM)  # SIGKILL would make a running editor restart it


def daemons_at(port: int) -> list[int]:
    """Return the ids of the processes that serve at a port."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue  # it has exited
        if b"serve" in words and str(port).encode() in words:
            found.append(int(place.parent.name))
    return found
