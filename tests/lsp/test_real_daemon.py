"""The language server with its own daemon and the starter pair: from a key press to the engine and back."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp.settings import EditorSettings

from codespec.client import starter
from tests.lsp.conversation import Editor, replacement, run
from tests.lsp.fake_daemon import editor
from tests.lsp.test_daemon_process import free_port

PROGRAM = (
    "def add(first, second):\n    return first + second\n\n\ndef subtract(first, second):\n    return \n\n\nx = 1\n"
)
LINE, COLUMN = 5, 11


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Record the daemons that a test has started, and stop them with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    begun: list[Any] = []
    monkeypatch.setattr(starter, "_started", begun)
    yield begun
    for process in begun:
        process.kill()
        process.wait()


def ask_daemon(url: str, path: str, body: dict[str, Any] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as reply:
        return str(reply.read().decode())


def direct(url: str, prefix: str, suffix: str) -> str:
    """Return the daemon's own answer."""
    stream = ask_daemon(url, "/v1/codespec/complete", {"prefix": prefix, "suffix": suffix, "language": "python"})
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    return "".join(event.get("text", "") for event in events)


async def no_work_left(url: str) -> None:
    while json.loads(await asyncio.to_thread(ask_daemon, url, "/health"))["open"]:
        await asyncio.sleep(0.01)


async def use(client: Editor, url: str, started: list[Any]) -> None:
    await client.start()
    client.open(PROGRAM)
    (text,) = await client.texts(LINE, COLUMN)
    rows = PROGRAM.splitlines(keepends=True)
    prefix = "".join(rows[:LINE]) + "    return "
    assert text == "    return " + await asyncio.to_thread(direct, url, prefix, PROGRAM[len(prefix) :])
    typed = text.removeprefix("    return ")
    assert typed.strip(), "the starter pair has something to say here"
    client.type(2, LINE, COLUMN, typed[0])
    assert await client.texts(LINE, COLUMN + 1) == [text]
    assert (await client.status())["counters"]["fromDaemon"] == 1
    client.type(3, 0, 0, "# a line above\n")
    number, reply = client.ask(LINE + 1, COLUMN + 1)
    client.cancel(number)
    assert (await reply).get("error", {"code": -32800})["code"] == -32800
    await no_work_left(url)
    await retype(client, url)
    assert len(started) == 1
    started[0].kill()
    client.type(4, 0, 0, "# another\n")
    assert (await client.texts(LINE + 2, COLUMN + 1))[0].startswith("    return " + typed[0])
    assert len(started) == 2, "it was started again"


async def retype(client: Editor, url: str) -> None:
    """Text deleted in another document is drafted where it is written again."""
    uri, lines = "file:///p/again.py", "".join(f"TOTAL_{number} = {number} * 7\n" for number in range(30))
    client.open(lines + PROGRAM, uri=uri)
    client.change(2, replacement(31, 4, 31, 25, ""), uri=uri)
    assert (await client.texts(31, 4, uri=uri))[0].strip()
    await no_work_left(url)
    metrics = await asyncio.to_thread(ask_daemon, url, "/metrics")
    assert re.search(r'spec_decode_num_drafts_total\{.*proposer="prediction".*\} [1-9]', metrics)


def test_from_a_key_to_the_engine_and_back(started: list[Any]) -> None:
    async def scenario() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        arguments = ("--max-batch", "2", "--no-learn")
        settings = EditorSettings(url=url, budget_ms=300_000, daemon_arguments=arguments)
        async with editor(settings) as client:
            await use(client, url, started)

    run(scenario(), seconds=300)
