"""`codespec lsp` with its own daemon: its working folder, and a daemon that hangs, dies or has no disk space."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import user_environment
from tests.lsp.conversation import Editor, run, until
from tests.lsp.test_daemon_process import free_port
from tests.lsp.test_process import on_pipes, started

MAX_SECONDS = 300.0
# A language server that waits less before and between two checks of the daemon's health.
IMPATIENT = """
import sys
from codespec_lsp import daemon
daemon.EVENT_TIMEOUT_S = daemon.HEALTH_INTERVAL_S = 0.1
from codespec.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass
class Started:
    """An editor, and the state folder with the daemon's files."""

    client: Editor
    state: Path
    port: int

    @property
    def log(self) -> Path:
        return self.state / f"daemon-{self.port}.log"

    def number(self) -> int:
        """The daemon's process id, or 0."""
        try:
            return int((self.state / f"daemon-{self.port}.pid").read_text())
        except (OSError, ValueError):
            return 0

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as reply:
            return dict(json.loads(reply.read()))

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.number(), number)

    async def until_told(self, kind: str, *words: str) -> None:
        """Wait until the status shows the words."""
        await until(lambda: _shows(self.client, kind, words))

    async def until_ready(self) -> None:
        async def ready() -> bool:
            with suppress(OSError):
                return bool((await asyncio.to_thread(self.health))["status"] == "ok")
            return False

        while not await ready():
            await asyncio.sleep(0.05)


def _shows(client: Editor, kind: str, words: tuple[str, ...]) -> bool:
    told = client.heard("didChangeStatus")
    return bool(told) and told[-1]["kind"] == kind and all(word in told[-1]["message"] for word in words)


@asynccontextmanager
async def editing(
    folder: Path, arguments: list[str], options: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Started]:
    """Run an editor whose language server starts its own daemons; `settings` are the process's."""
    port, state = free_port(), str(folder / "XDG_STATE_HOME")
    environment = user_environment(XDG_STATE_HOME=state, **settings.pop("variables", {}))
    given = {"url": f"http://127.0.0.1:{port}", "daemonArguments": arguments, "budgetMs": 60_000, **(options or {})}
    with started(env=environment, stderr=subprocess.DEVNULL, **settings) as process:
        found = Path(state) / "codespec"
        async with on_pipes(process) as client:
            here = Started(client, found, port)
            try:
                await client.start(initializationOptions=given)
                client.open("x = \n")
                yield here
            finally:
                process.kill()  # kill it first, or it would start another daemon
                process.wait()
                with suppress(ProcessLookupError):
                    if here.number():
                        here.kill()


def without_room() -> None:
    """Limit files to a few bytes, like a full disk; sockets and pipes still work."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


def test_it_begins_in_a_folder_of_its_own(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """Relative paths in the user's settings refer to the language server's folder."""
    (tmp_path / "clone" / "small").mkdir(parents=True)
    (tmp_path / "clone" / "big").symlink_to(models.target)
    (tmp_path / "clone" / "small" / "one").symlink_to(models.drafter)
    arguments = ["--target", "./big", "--drafter=../clone/small/one", "--dtype", "native", "--warmup", "0"]

    async def scenario() -> None:
        async with editing(tmp_path, arguments, cwd=tmp_path / "clone") as here:
            assert await here.client.texts(0, 4)
            health = await asyncio.to_thread(here.health)
            assert (health["target"], health["drafter"]) == ("big", "one")
            place = Path(f"/proc/{here.number()}/cwd")
            if Path("/proc/self/cwd").exists():
                assert place.readlink() == here.state

    run(scenario(), MAX_SECONDS)


def test_a_folder_of_the_clone_is_no_model(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """`owner/name` means the hub, even if the open folder has a subfolder of that name."""
    snapshot = tmp_path / "hub" / "hub" / "models--owner--name" / "snapshots" / ("0" * 40)
    shutil.copytree(models.target, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    shutil.copytree(models.drafter, tmp_path / "clone" / "owner" / "name")
    shutil.copytree(models.drafter, tmp_path / "clone" / "Qwen" / "Qwen2.5-Coder-0.5B")
    arguments = ["--target", "owner/name", "--drafter", "none", "--dtype", "native", "--warmup", "0"]
    where: dict[str, Any] = {"cwd": tmp_path / "clone", "variables": {"HF_HOME": str(tmp_path / "hub")}}

    async def scenario() -> None:
        async with editing(tmp_path, arguments, **where) as here:
            assert await here.client.texts(0, 4)
            assert (await asyncio.to_thread(here.health))["target"] == "owner/name"
        async with editing(tmp_path, [], {"model": "Qwen/Qwen2.5-Coder-0.5B"}, **where) as here:
            assert await here.client.texts(0, 4) == []
            # As an error; the warm-up that fails after the request then turns it into a warning.
            told = partial(here.client.heard, "didChangeStatus")
            await until(lambda: any(s["kind"] == "Error" and "has not been pulled" in s["message"] for s in told()))

    run(scenario(), MAX_SECONDS)


def log_on_a_full_device(folder: Path, port: int) -> None:
    log = folder / "XDG_STATE_HOME" / "codespec" / f"daemon-{port}.log"
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")


@pytest.mark.parametrize("everything", [True, False])
def test_on_a_full_disk_it_goes_on_and_the_user_is_told(
    everything: bool,
    models: Models,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = [*models.pair, "--warmup", "0"]
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # what is measured can't be kept either
    settings: dict[str, Any] = {"preexec_fn": without_room, "variables": own_cache} if everything else {}
    if not everything:
        port = free_port()
        monkeypatch.setattr(sys.modules[__name__], "free_port", lambda: port)
        log_on_a_full_device(tmp_path, port)

    async def scenario() -> None:
        async with editing(tmp_path, arguments, **settings) as here:
            assert await here.client.texts(0, 4)
            await here.client.status()
            await here.until_told("Normal", "The daemon's log can't be written", "make room on its disk")
            number = here.number()
            here.client.type(2, 0, 4, "y")
            assert await here.client.texts(0, 5)
            status = await here.client.status()
            assert "make room" in status["daemon"]["warning"] and "make room" in status["message"]
            assert here.number() == number and not here.client.heard("window/showMessage")

    run(scenario(), MAX_SECONDS)


def test_a_dead_daemon_is_replaced_at_once_and_its_log_kept(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """Without any request. After three starts it is not restarted, and the user is told where the log is."""

    async def replaced(here: Started, dead: int) -> None:
        await until(lambda: here.number() not in (0, dead))

    async def scenario() -> None:
        async with editing(tmp_path, models.flags) as here:
            assert await here.client.texts(0, 4)
            for life in range(1, 3):
                dead = here.number()
                with here.log.open("a") as log:
                    print(f"life {life}", file=log)
                here.kill()
                await replaced(here, dead)
                await here.until_ready()
                assert here.log.with_name(f"{here.log.name}.1").read_text().endswith(f"life {life}\n")
                assert "life" not in here.log.read_text()
                here.client.type(life + 1, 0, life + 3, "y")  # also, one killed before anybody saw it is not replaced
                assert await here.client.texts(0, life + 4), "it serves as the first one did"
            dead = here.number()
            here.kill()
            here.client.type(4, 0, 6, "z")
            assert await here.client.texts(0, 7) == []
            await here.until_told("Error", "exited 3 times", f"signal {int(signal.SIGKILL)} killed it", str(here.log))
            assert here.number() == dead

    run(scenario(), MAX_SECONDS)


def test_a_daemon_that_hangs_is_told_until_it_speaks(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """Stopped, continued, stopped again and restarted by the user."""

    async def ask_twice(client: Editor, version: int) -> None:
        for more in range(2):
            client.type(version + more, 0, 2 + version + more, "y")
            assert await client.texts(0, 3 + version + more) == []

    async def scenario() -> None:
        async with editing(tmp_path, models.flags, python=("-c", IMPATIENT, "lsp")) as here:
            assert await here.client.texts(0, 4)
            here.client.notify("workspace/didChangeConfiguration", {"settings": {"budgetMs": 500}})
            number = here.number()
            here.kill(signal.SIGSTOP)
            await ask_twice(here.client, 2)
            await here.until_told("Warning", "does not answer", "restart the daemon")
            here.kill(signal.SIGCONT)
            await here.until_told("Normal")
            assert here.number() == number and not here.client.heard("window/showMessage")
            here.kill(signal.SIGSTOP)
            await ask_twice(here.client, 4)
            await here.until_told("Warning", "does not answer")
            reply = await here.client.request("workspace/executeCommand", {"command": "codespec.restartDaemon"})
            assert reply["result"] == {"message": ""} and here.number() != number
            await here.until_told("Normal")

    run(scenario(), MAX_SECONDS)
