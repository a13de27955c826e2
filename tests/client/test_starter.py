"""A daemon that a signal kills is replaced, whenever the signal comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from codespec.client.daemon_client import Health
from codespec.client.starter import Starter

WAITS = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(600)"


class Client:
    """A client that kills the first daemon during its check number `kills_at` and then reports `answer`."""

    url = "http://127.0.0.1:1"

    def __init__(self, folder: Path, kills_at: int, answer: str) -> None:
        self._folder, self._left, self._answer = folder, kills_at, answer

    async def health(self) -> Health:
        began = len(list(self._folder.iterdir()))
        state = "ready" if began > (self._left <= 0) else "absent"
        self._left -= state == "ready"
        if state == "ready" and not self._left:
            self.kill_all()
            await asyncio.sleep(0.5)  # until the starter has noticed the exit
            state = self._answer
        return Health(state)  # type: ignore[arg-type]

    def kill_all(self) -> None:
        for file in self._folder.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(file.name), signal.SIGKILL)


@pytest.mark.parametrize(("kills_at", "answer"), [(1, "absent"), (1, "ready"), (2, "ready")])
def test_a_killed_daemon_is_replaced_without_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills_at: int, answer: str
) -> None:
    """Killed before the starter sees its first answer, with it, or just after a later one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder := tmp_path / "begun").mkdir()
    client = Client(folder, kills_at, answer)

    async def scenario() -> None:
        starter = Starter(client, [sys.executable, "-S", "-c", WAITS, str(folder)], port=1)  # type: ignore[arg-type]
        for _ in range(kills_at):
            (result,) = await asyncio.gather(starter.ensure(), return_exceptions=True)
        assert ("exited immediately (signal 9" in str(result)) is (answer == "absent")
        async with asyncio.timeout(60):
            while len(list(folder.iterdir())) < 2:
                await asyncio.sleep(0.02)
        await starter.close()

    try:
        asyncio.run(scenario())
    finally:
        client.kill_all()
