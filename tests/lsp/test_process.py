"""`codespec lsp` as editors start it: on pipes, on a shared port, with light imports, and with a real daemon."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp.protocol import READERS

from codespec.cli import main
from tests.cli.processes import start_python, user_environment
from tests.lsp.conversation import Editor, run, until
from tests.lsp.fake_daemon import FakeDaemon, daemon

HEAVY = ("torch", "transformers", "numpy", "codespec.engine", "codespec.server", "aiohttp")
MAX_MEGABYTES = 80
PATIENT = {"initializationOptions": {"budgetMs": 60_000}}
# Serve like the command, then print the imported modules.
TELL_MODULES = """
import sys
from codespec.cli import main
code = main(["lsp", "--no-start"])
print(" ".join(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@contextmanager
def started(
    *words: str, python: tuple[str, ...] = ("-m", "codespec", "lsp"), **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a language server process."""
    with start_python(*python, *words, stdin=subprocess.PIPE, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def on_pipes(process: subprocess.Popen[bytes]) -> AsyncIterator[Editor]:
    """Return an editor connected to its pipes."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 24)
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    writing, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), process.stdin)
    client = Editor(reader, asyncio.StreamWriter(writing, protocol, reader, loop))
    try:
        yield client
    finally:
        await client.leave()
        reading.close()
        writing.close()


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process and return its exit code."""
    await until(lambda: process.poll() is not None)
    return process.returncode


def test_a_session_on_pipes() -> None:
    async def scenario(process: subprocess.Popen[bytes], fake: FakeDaemon) -> None:
        async with on_pipes(process) as client:
            fake.script = ["x", " + 1"]
            assert (await client.start(**PATIENT))["inlineCompletionProvider"] == {}
            client.open("def f(x):\n    return \n")
            assert await client.texts(1, 11) == ["    return x + 1"]
            number, reply = client.ask(0, 0)
            client.cancel(number)
            assert (await reply).get("error", {"code": -32800})["code"] == -32800
            status = Path(f"/proc/{process.pid}/status")
            if status.exists():
                used = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
                assert used and int(used[1]) / 1024 <= MAX_MEGABYTES
            await client.shut_down()
            assert await ended(process) == 0

    async def with_daemon() -> None:
        async with daemon() as fake:
            with started("--daemon", f"http://127.0.0.1:{fake.port}") as process:
                await scenario(process, fake)

    run(with_daemon())


def test_nothing_heavy_is_loaded() -> None:
    async def scenario(process: subprocess.Popen[bytes]) -> None:
        async with on_pipes(process) as client:
            await client.start()
            client.open("x = \n")
            assert await client.texts(0, 4) == []
            await client.shut_down()
            await ended(process)

    with started(python=("-c", TELL_MODULES)) as process:
        run(scenario(process))
        assert process.stderr is not None
        modules = set(process.stderr.read().decode().split())
    assert "codespec_lsp.server" in modules and not modules & set(HEAVY)


def test_an_editor_that_is_gone_ends_it() -> None:
    async def scenario(process: subprocess.Popen[bytes]) -> None:
        async with on_pipes(process) as client:
            await client.start()
        assert await ended(process) == 1

    with started("--no-start") as process:
        run(scenario(process))


POLLED = """
import asyncio, sys
sys.platform = "darwin"
from codespec.cli import main
sys.exit(main(sys.argv[1:]))
"""
THREADED = """
import sys
from codespec_lsp import messages
messages._can_be_polled = lambda stream: False
from codespec.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "python",
    [("-m", "codespec", "lsp"), ("-c", POLLED, "lsp"), ("-c", THREADED, "lsp")],
    ids=["descriptor", "polled", "threaded reader"],
)
def test_an_editor_that_is_gone_ends_it_though_its_pipe_is_open(python: tuple[str, ...]) -> None:
    async def scenario(process: subprocess.Popen[bytes], editor: subprocess.Popen[bytes]) -> None:
        async with on_pipes(process) as client:
            await client.start(processId=editor.pid)
            assert (await client.status())["process"] == process.pid, "it runs while the editor does"
            editor.kill()
            editor.wait()
            assert await ended(process) == 1

    with subprocess.Popen(["sleep", "600"]) as editor, started("--no-start", python=python) as process:
        run(scenario(process, editor))
        assert process.stderr is not None and process.stderr.read() == b""


def test_an_editor_that_was_gone_before_ends_it_too() -> None:
    async def scenario(process: subprocess.Popen[bytes], gone: int) -> None:
        async with on_pipes(process) as client:
            await client.start(processId=gone)
            assert await ended(process) == 1

    with subprocess.Popen(["true"]) as editor:
        editor.wait()
    with started("--no-start") as process:
        run(scenario(process, editor.pid))


@pytest.mark.parametrize("number", [None, 0, -1, "7", 2**70, 1.5, True])
def test_a_process_id_that_names_none_is_not_watched(number: object) -> None:
    assert "processId" not in READERS["initialize"]({"processId": number})


def test_an_editor_that_is_gone_at_once_leaves_nothing_in_its_log() -> None:
    """The editor leaves while the server still imports what the first request needs."""

    async def scenario(process: subprocess.Popen[bytes]) -> None:
        async with on_pipes(process) as client:
            await client.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
            client.notify("initialized", {})
        await ended(process)

    with started("--no-start") as process:
        run(scenario(process))
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_input_from_a_file(tmp_path: Path) -> None:
    """A file is read in another way than a pipe."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "codespec/status"})
    (tmp_path / "in").write_text(f"Content-Length: {len(body)}\r\n\r\n{body}")
    with (tmp_path / "in").open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "codespec", "lsp", "--no-start"],
            stdin=file,
            capture_output=True,
            env=user_environment(),
            timeout=60,
        )
    assert b"-32002" in done.stdout and (done.returncode, done.stderr) == (1, b"")


def test_many_editors_on_a_port() -> None:
    """Editors do not affect each other; a signal ends the server with 0."""

    async def scenario(port: int, fake: FakeDaemon) -> None:
        fake.script = ["1"]
        clients = [Editor(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        for number, client in enumerate(clients):
            await client.start(**PATIENT)
            client.open(f"x{number} = \n")
        answers = await asyncio.gather(*(client.texts(0, 5) for client in clients))
        assert answers == [[f"x{number} = 1"] for number in range(3)]
        assert len({asked.body["document"] for asked in fake.asked}) == 3, "one file, three documents"
        await clients[0].leave()
        await clients[1].shut_down()
        clients[2].type(2, 0, 0, "y")
        assert await clients[2].texts(0, 6) == ["yx2 = 1"]
        for client in clients[1:]:
            await client.leave()

    async def with_daemon() -> None:
        async with daemon() as fake:
            with started("--tcp", "0", "--daemon", f"http://127.0.0.1:{fake.port}") as process:
                assert process.stdout is not None
                line = process.stdout.readline().decode()
                match = re.fullmatch(r"codespec: language server listening on 127\.0\.0\.1:(\d+)\n", line)
                assert match
                await scenario(int(match[1]), fake)
                process.send_signal(signal.SIGTERM)
                assert await ended(process) == 0

    run(with_daemon())


def test_a_signal_while_clients_are_connected_prints_nothing() -> None:
    async def scenario(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        clients = [Editor(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)) for _ in range(3)]
        for client in clients[:2]:
            await client.start()
        clients[0].open("x = \n")
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
        assert process.stderr.read() == b""
        for client in clients:
            await client.leave()

    with started("--tcp", "0", "--no-start") as process:
        run(scenario(process))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tcp", "99999"], "--tcp 99999 is not a valid port"),
        (["--daemon", "nowhere"], "--daemon nowhere is not a valid address: write http://HOST:PORT"),
        (["--tcp", "0", "--stdio"], "not allowed with"),
    ],
)
def test_bad_flags_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["lsp", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    message = capsys.readouterr()
    assert (code, message.out, message.err.count("\n")) == (2, "", 1) and sentence in message.err
