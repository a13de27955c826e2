"""Mixed requests at a daemon that an editor's starter runs, restarts and finds killed: no wrong text, nothing lost.

SOAK_REQUESTS sets their number (10,000). The run by hand, which writes docs/soak.json:
`SOAK_REQUESTS=100000 SOAK_MINUTES=60 pytest -m full tests/full/test_soak.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient
from codespec.client.starter import Starter, serve_command
from codespec.user_folders import state_folder
from tests.cli.conftest import LONG, Models, models  # noqa: F401
from tests.cli.processes import TOKEN
from tests.full.fuzzing import dice, resident
from tests.full.report import write_report
from tests.full.soak_load import COMPLETE, Load, Now, Oracle

pytestmark = pytest.mark.full
REQUESTS = int(os.environ.get("SOAK_REQUESTS") or 10_000)
MINUTES = float(os.environ.get("SOAK_MINUTES") or 60)
LIVES, CHUNKS = 5, 6  # daemons one after another; parts of a life
SETTLED = 2  # parts of a life after which its memory must be flat
SLOTS = 4
# oneDNN keeps a kernel of up to 0.6 MB for each matrix and number of rows, 1024 in all, which random requests reach
# only after thousands (lab/LOG.md). With room for fewer, memory must soon be flat.
KERNELS = 64
POOL = min(32, (os.cpu_count() or 1) + 4)  # threads that the event loop starts one by one, and keeps
MAX_GROWTH = 0.02
WORDS = ("--warmup", "0", "--threads", "1", "--policy", "fixed", "--draft-tokens", "4", "--max-batch", str(SLOTS))


@dataclass(frozen=True, slots=True)
class Rest:
    """What a daemon holds while it has nothing to do. `resident` is in bytes."""

    files: int
    threads: int
    children: int
    resident: int


class Editor:
    """An editor's side of the daemon: it starts, restarts and kills it."""

    def __init__(self, port: int, folder: Path, served: Models) -> None:
        (folder / "token").write_text(TOKEN)
        words = [*served.pair, *WORDS, "--token-file"]
        client = DaemonClient(ProvenConnections(f"http://127.0.0.1:{port}", TOKEN))
        self.port = port
        self.now = Now()
        self.starter = Starter(client, serve_command(port, [*words, str(folder / "token")]), port=port)
        self.client = client
        self.kills = self.restarts = 0
        self._own = {"Authorization": f"Bearer {TOKEN}"}

    @property
    def pid(self) -> int:
        """The daemon's process."""
        return int((state_folder() / f"daemon-{self.port}.pid").read_text())

    async def until_ready(self) -> None:
        """Wait until the daemon serves."""
        end = time.monotonic() + 120
        while (await self.client.health()).state != "ready":
            assert time.monotonic() < end, "the daemon does not come back"
            await asyncio.sleep(0.1)

    async def _bring_down(self, way: Callable[[], Awaitable[None]]) -> None:
        self.now.downs += 1
        self.starter.forgive()
        await way()
        await self.until_ready()
        self.now.downs += 1

    async def kill(self) -> None:
        """Kill the daemon; the starter replaces it."""

        async def way() -> None:
            former = self.pid
            os.kill(former, signal.SIGKILL)
            while self.pid == former:
                await asyncio.sleep(0.05)

        self.kills += 1
        await self._bring_down(way)

    async def restart(self) -> None:
        """Restart the daemon as an editor's command does."""
        self.restarts += 1
        await self._bring_down(self.starter.restart)

    async def at_rest(self) -> Rest:
        """Wait until the daemon has nothing to do, check that all slots are free, and look at the process."""
        await self._check_slots()
        end = time.monotonic() + 60
        while (health := await self._ask_health())["open"]:
            assert time.monotonic() < end, "a request is left"
            await asyncio.sleep(0.05)
        assert (health["mode"], health["warning"]) == ("exact", ""), health
        await asyncio.sleep(1.0)  # for closed connections
        folder = Path(f"/proc/{self.pid}")
        counts = [len(os.listdir(folder / name)) for name in ("fd", "task")]
        return Rest(*counts, len(children(self.pid)), resident(self.pid))

    async def _ask_health(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/health"
        async with aiohttp.ClientSession(headers=self._own) as session, session.get(url) as reply:
            return dict(await reply.json())

    async def _check_slots(self) -> None:
        """Check that as many long texts as there are slots are written at once."""
        begun, all_begun = 0, asyncio.Event()

        async def write(session: aiohttp.ClientSession, number: int) -> None:
            nonlocal begun
            body = {"prefix": f"def f{number}(x):\n", "max_tokens": LONG, "shape": "raw", "speculate": False}
            async with session.post(f"http://127.0.0.1:{self.port}{COMPLETE}", json=body) as reply:
                assert await reply.content.readany()
                begun += 1
                if begun == SLOTS:
                    all_begun.set()
                await all_begun.wait()

        async with aiohttp.ClientSession(headers=self._own) as session, asyncio.timeout(60):
            await asyncio.gather(*(write(session, number) for number in range(SLOTS)))


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = [int(line) for line in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [one for child in found for one in children(child)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def soak(editor: Editor, load: Load, requests: int, seconds: float) -> list[list[Rest]]:
    """Send the requests; return what each daemon held after each part of its life."""
    end, part, lives = time.monotonic() + seconds, requests // (LIVES * CHUNKS), list[list[Rest]]()
    for life in range(LIVES):
        lives.append([])
        for chunk in range(CHUNKS):
            at: dict[int, Callable[[], Awaitable[None]]] = {}
            if life and not chunk:
                at[part // 10] = editor.kill if life % 2 else editor.restart
            await load.run(part, at)
            lives[-1].append(await editor.at_rest())
            print(f"{time.strftime('%H:%M:%S')} {load.counts['requests']} requests, {lives[-1][-1]}", flush=True)
            if load.wrong or time.monotonic() > end:
                return lives
    return lives


def growth(life: list[Rest]) -> float:
    """Return how much more memory a daemon holds at the end of its life than when it had settled, as a share."""
    return life[-1].resident / life[SETTLED - 1].resident - 1


def test_soak(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    chance, port, began = dice("soak"), free_port(), time.monotonic()

    async def run() -> tuple[Editor, Load, list[list[Rest]]]:
        editor = Editor(port, tmp_path, models)
        load = Load(port, TOKEN, Oracle(models.target), editor.now, chance.randrange(2**31))
        try:
            await editor.starter.ensure()
            await editor.until_ready()
            return editor, load, await soak(editor, load, REQUESTS, 60 * MINUTES)
        finally:
            await editor.starter.close()
            await editor.client.close()
            os.kill(editor.pid, signal.SIGKILL)

    editor, load, lives = asyncio.run(run())
    settled = [life for life in lives if len(life) > SETTLED]
    rows = {
        "counts": dict(load.counts),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "kills": editor.kills,
        "restarts": editor.restarts,
        "growth_percent": [round(100 * growth(life), 2) for life in settled],
        "at_rest": [[asdict(one) for one in life] for life in lives],
        "wrong": load.wrong[:20],
    }
    print(json.dumps(rows, indent=1))
    if "SOAK_REQUESTS" in os.environ:
        command = f"SOAK_REQUESTS={REQUESTS} SOAK_MINUTES={MINUTES:g} pytest -m full tests/full/test_soak.py"
        write_report("soak", command, rows)
    assert not load.wrong, load.wrong[:5]
    for life in settled:
        for name, more in (("files", 0), ("children", 0), ("threads", POOL)):
            assert getattr(life[-1], name) <= getattr(life[SETTLED - 1], name) + more, (name, life)
    assert settled and all(growth(life) < MAX_GROWTH for life in settled), rows["growth_percent"]
