"""Starting a daemon if none answers: one for all editors, restarted after a crash, but not forever."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from codespec_lsp.daemon import Daemons
from codespec_lsp.settings import EditorSettings

from codespec.client import daemon_client
from codespec.client.starter import MAX_STARTS, serve_command
from tests.lsp.conversation import Editor, run, until
from tests.lsp.fake_daemon import daemon, editor

# A minimal daemon that writes its process id to a file at each start.
TINY = """
import os, pathlib, sys
from aiohttp import web
from codespec.server import sockets
pathlib.Path(sys.argv[2], str(os.getpid())).touch()
async def health(request):
    return web.json_response({"status": "ok"})
async def complete(request):
    events = 'event: text\\ndata: {"text": "1", "choice": 0}\\n\\n'
    events += 'event: done\\ndata: {"choice": 0, "finish_reason": "stop"}\\n\\n'
    return web.Response(text=events, content_type="text/event-stream")
app = web.Application()
app[sockets.PROOF_KEYS] = sockets.proof_keys("")
app.add_routes([*sockets.PROOF_ROUTES, web.get("/health", health), web.post("/v1/codespec/complete", complete)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
# The same, at first too busy to answer.
WAITS = "async def health(request, left=[0.8] * 2):\n    time.sleep(left.pop() if left else 0)"
BUSY = "import time" + TINY.replace("async def health(request):", WAITS)
REFUSES = "import sys; sys.exit('codespec: There is no model folder there: give another.')"


pytestmark = pytest.mark.usefixtures("own_state")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def daemons(code: str, folder: Path) -> Daemons:
    def command(port: int, _arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", code, str(port), str(folder)]

    return Daemons(command)


def end_all(folder: Path) -> None:
    """Kill the processes that a test started, by their ids."""
    for file in folder.iterdir():
        try:
            os.kill(int(file.name), signal.SIGKILL)
        except ProcessLookupError:
            continue


async def hello(client: Editor) -> list[str]:
    await client.start()
    client.open("x = \n")
    return await client.texts(0, 4)


def test_two_editors_start_one_and_a_dead_one_comes_back(begun: Path) -> None:
    """Each editor has its own language server, as with stdio."""

    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000)
        async with editor(settings, daemons(TINY, begun)) as one, editor(settings, daemons(TINY, begun)) as other:
            assert await asyncio.gather(hello(one), hello(other)) == [["x = 1"]] * 2
            (number,) = [int(file.name) for file in begun.iterdir()]
            os.kill(number, signal.SIGKILL)
            one.type(2, 0, 4, "y")
            assert await one.texts(0, 5) == ["x = y1"]
            assert len(list(begun.iterdir())) == 2
            assert (await one.status())["kind"] == "Normal"

    try:
        run(scenario())
    finally:
        end_all(begun)


def test_one_that_is_too_busy_to_answer_is_waited_for(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_client, "HEALTH_TIMEOUT_S", 0.4)

    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000)
        async with editor(settings, daemons(BUSY, begun)) as one, editor(settings, daemons(BUSY, begun)) as other:
            assert await asyncio.gather(hello(one), hello(other)) == [["x = 1"]] * 2
            assert not one.heard("window/showMessage") and not other.heard("window/showMessage")

    try:
        run(scenario())
        assert len(list(begun.iterdir())) == 1
    finally:
        end_all(begun)


def test_typing_on_while_one_starts_starts_no_other(begun: Path) -> None:
    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000)
        async with editor(settings, daemons(TINY, begun)) as client:
            await client.start()
            client.open("x = \n")
            for version in range(2, 12):
                client.ask(0, 2 + version)
                client.type(version, 0, 2 + version, "y")
                await asyncio.sleep(0.02)
            assert await client.texts(0, 14) == ["x = yyyyyyyyyy1"]

    try:
        run(scenario())
        assert len(list(begun.iterdir())) == 1
    finally:
        end_all(begun)


def test_one_that_can_not_start_is_told_and_not_tried_for_ever(begun: Path) -> None:
    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000)
        async with editor(settings, daemons(REFUSES, begun)) as client:
            await client.start()
            client.open("x = \n")
            for _ in range(MAX_STARTS + 2):
                assert await client.texts(0, 4) == []
            status = await client.status()
            assert status["kind"] == "Error"
            assert f"exited {MAX_STARTS} times" in status["message"]
            first = client.heard("window/showMessage")[0]["message"]
            assert "(There is no model folder there: give another)" in first and "Traceback" not in first
            shown = len(client.heard("window/showMessage"))
            assert shown == 2, "once that it ended, once that it is not started again"

    run(scenario())


def test_what_is_no_daemon_is_told() -> None:
    async def scenario() -> None:
        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"SSH-2.0-something\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with editor(EditorSettings(url=f"http://127.0.0.1:{port}", budget_ms=60_000)) as client:
            assert await hello(client) == []
            assert f"http://127.0.0.1:{port}" in (await client.status())["message"]
            assert (await client.status())["kind"] == "Error"
        server.close()

    run(scenario())


def test_none_is_started_elsewhere_or_where_the_user_says_no() -> None:
    async def scenario() -> None:
        assert EditorSettings(url=f"http://127.0.0.1:{free_port()}").daemon_is_here
        assert not EditorSettings(url="http://192.0.2.1:1").daemon_is_here
        async with daemon() as fake:
            port = fake.port
        async with editor(
            EditorSettings(url=f"http://127.0.0.1:{port}", start_daemon=False, budget_ms=60_000)
        ) as client:
            assert await hello(client) == []
            async with daemon(port) as fake:
                fake.script = ["1"]
                await until(lambda: fake.port == port)
                assert await client.texts(0, 4) == ["x = 1"], "one that the user started since is found"

    run(scenario())


def test_the_command_is_this_installations_own() -> None:
    words = serve_command(1234, ["--target", "t"])
    assert words[0] == sys.executable and words[1:4] == ["-P", "-m", "codespec"]
    assert words[4:] == ["serve", "--port", "1234", "--log-kb", "1000", "--target", "t"]


def test_only_the_settings_of_the_time_replace_a_dead_daemon() -> None:
    """After a change of settings, the former daemon is not restarted."""
    found = Daemons()
    here, there = "http://127.0.0.1:1", "http://127.0.0.1:2"
    settings = [EditorSettings(url=here), EditorSettings(url=here, model="starter"), EditorSettings(url=there)]
    starters = [found.find(each)[1] for each in settings]
    assert [starter.replaces for starter in starters] == [False, True, True]
    assert found.find(settings[0])[1] is starters[0]
    assert [starter.replaces for starter in starters] == [True, False, True]


def test_a_killed_daemon_is_followed_by_another_before_anybody_asks(begun: Path) -> None:
    """Up to the usual number of starts, and not after the editor has gone."""
    settings, shared = EditorSettings(url=f"http://127.0.0.1:{free_port()}", budget_ms=60_000), daemons(TINY, begun)

    async def scenario() -> None:
        async with editor(settings, shared) as client:
            assert await hello(client) == ["x = 1"]
            for count in range(2, MAX_STARTS + 1):
                (number,) = [int(file.name) for file in begun.iterdir() if not file.stat().st_size]
                (begun / str(number)).write_text("killed")
                os.kill(number, signal.SIGKILL)
                await until(partial(has, begun, count))
                await shared.find(settings)[1].ensure()  # it is known to listen

    try:
        run(scenario())
    finally:
        end_all(begun)
    assert has(begun, MAX_STARTS)


def has(folder: Path, count: int) -> bool:
    return len(list(folder.iterdir())) == count
