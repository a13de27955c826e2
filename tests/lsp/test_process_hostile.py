"""`codespec lsp` as editors start it, in malicious folders, at attacked ports and on odd disks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from codespec.files import MAX_JSON_DEPTH
from tests.lsp.conversation import SECONDS, Editor, run, until
from tests.lsp.fake_daemon import FakeDaemon, daemon
from tests.lsp.test_process import on_pipes, started

MAX_BYTES = 2 << 30  # of address space: unbounded growth fails in the process and spares the machine

Scenario = Callable[[Editor, FakeDaemon], Awaitable[None]]


def bound() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))


def on_a_server(scenario: Scenario, seconds: float = SECONDS, **options: Any) -> None:
    """Run the scenario with an editor on a server's pipes and a fake daemon; `options` are the editor's settings."""

    async def whole() -> None:
        async with daemon() as fake:
            fake.script = ["1"]
            with started("--daemon", f"http://127.0.0.1:{fake.port}", preexec_fn=bound) as process:
                async with on_pipes(process) as client:
                    await client.start(initializationOptions={"budgetMs": 60_000, **options})
                    await scenario(client, fake)
                    await client.shut_down()

    run(whole(), seconds)


class SharedServer:
    """One server for several tests, which find it without documents. One that failed a test is replaced."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._held: AsyncExitStack | None = None

    def run(self, scenario: Scenario, seconds: float = SECONDS) -> None:
        """Run the scenario."""
        self._runner.run(self._run(scenario, seconds))

    def end(self) -> None:
        """Shut the server down."""
        self._runner.run(self._leave())
        self._runner.close()

    async def _run(self, scenario: Scenario, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                if self._held is None:
                    await self._begin()
                await self._client.begin_again()
                self._fake.asked.clear()
                await scenario(self._client, self._fake)
        except BaseException:
            await self._leave()
            raise

    async def _begin(self) -> None:
        self._held = held = AsyncExitStack()
        self._fake = await held.enter_async_context(daemon())
        self._fake.script = ["1"]
        process = held.enter_context(started("--daemon", f"http://127.0.0.1:{self._fake.port}", preexec_fn=bound))
        self._client = await held.enter_async_context(on_pipes(process))
        await self._client.start(initializationOptions={"budgetMs": 60_000})

    async def _leave(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedServer]:
    """Return a server for the tests of this module."""
    server = SharedServer()
    yield server
    server.end()


def make_zero(file: Path) -> None:
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_zero, os.mkfifo, Path.mkdir])
def test_an_ignore_file_that_is_no_file(make: Callable[[Path], None], tmp_path: Path, shared: SharedServer) -> None:
    """Its folder's documents are not completed, with a message; others are, and the process stays small."""
    (tmp_path / ".git").mkdir()
    make(tmp_path / ".gitignore")

    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        uri = (tmp_path / "a.py").as_uri()
        client.open("x = \n", uri=uri)
        client.open("y = \n")
        for _ in range(3):
            assert await client.texts(0, 4, uri=uri) == []
            assert await client.texts(0, 4) == ["y = 1"]
        client.notify("textDocument/didFocus", {"textDocument": {"uri": uri}})
        assert await client.texts(0, 4, uri=uri) == []
        told = (await client.status())["message"]
        assert f"{tmp_path / '.gitignore'} can't be read (not a regular file)" in told
        assert all(asked.body["path"] == "a.py" and not asked.body["snippets"] for asked in fake.asked)

    shared.run(scenario)


def test_patterns_that_take_for_ever(tmp_path: Path, shared: SharedServer) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text(f"{'*a' * 60}b\n{'**/a/' * 40}b\n*.log\n")
    folder = tmp_path / "a" / "a" / "a" / ("a" * 200)
    folder.mkdir(parents=True)

    async def scenario(client: Editor, _: FakeDaemon) -> None:
        uri = (folder / ("a" * 200)).as_uri()
        client.open("x = \n", uri=uri)
        assert await client.texts(0, 4, uri=uri) == ["x = 1"]

    shared.run(scenario)


@pytest.mark.parametrize("inside", ["x" * 300 + "/a.py", "x" * 300, "file/a.py", "loop/a.py", "a" * 5000 + "/b.py"])
def test_a_document_where_no_file_can_be(inside: str, tmp_path: Path, shared: SharedServer) -> None:
    """A bad folder affects only its own documents; the others are completed."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")

    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        client.open("x = \n", uri=f"{tmp_path.as_uri()}/{inside}")
        client.open("y = \n")
        assert "result" in await client.ask(0, 4, uri=f"{tmp_path.as_uri()}/{inside}")[1]
        assert await client.texts(0, 4) == ["y = 1"]

    shared.run(scenario)


def test_a_token_file_that_is_no_file(tmp_path: Path) -> None:
    """The user is told, and the server neither waits nor grows."""
    make_zero(tmp_path / "zero")
    os.mkfifo(tmp_path / "fifo")

    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        client.open("x = \n")
        for name in ("fifo", "zero"):
            file = str(tmp_path / name)
            client.notify("workspace/didChangeConfiguration", {"settings": {"tokenFile": file}})
            assert await client.texts(0, 4) == []
            refusal = f"The token file {file} can't be read (not a regular file)"
            assert refusal in (await client.status())["message"]
        assert not fake.asked, "nothing is asked without the token"

    on_a_server(scenario, tokenFile=str(tmp_path / "fifo"))


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_message_that_nests_too_deep_is_refused_alone(depth: int, shared: SharedServer) -> None:
    """Code that walks a message need not limit its recursion."""
    settings = b"[" * depth + b"]" * depth
    told = (
        b'{"jsonrpc": "2.0", "method": "workspace/didChangeConfiguration", "params": {"settings": ' + settings + b"}}"
    )

    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        client.open("x = \n")
        client.send_bytes(told)
        await until(lambda: bool(client.stray))
        error = client.stray[0]["error"]
        assert error["code"] == -32700 and f"more than {MAX_JSON_DEPTH} brackets deep" in error["message"]
        assert await client.texts(0, 4) == ["x = 1"]

    shared.run(scenario)


def test_a_language_that_is_no_text_is_none(shared: SharedServer) -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        client.open("x = \n", language=7)  # type: ignore[arg-type]
        assert await client.texts(0, 4) == ["x = 1"]

    shared.run(scenario)


def test_a_web_page_gets_nothing_from_a_port() -> None:
    """HTTP also has a Content-Length. Its first line closes the connection, and editors continue."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}}}
    body = json.dumps(message).encode()
    framed = b"Content-Length: %d\r\n\r\n" % len(body) + body
    heads = [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n",
        b"Host: localhost\r\n",
        b"Content-Type: a\r\nOrigin: b\r\n",
        b"\r\n",
    ]

    async def say(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        reply = b""
        try:
            while piece := await reader.read(1 << 16):
                reply += piece
        except ConnectionResetError:  # the server closed before reading everything
            pass
        writer.close()
        return reply

    async def scenario(port: int) -> None:
        for head in [*heads, b"\r\n"]:
            reply = await say(port, head + framed)
            assert b"capabilities" not in reply and reply.count(b'jsonrpc": ') <= 1
        client = Editor(*await asyncio.open_connection("127.0.0.1", port))
        assert "inlineCompletionProvider" in await client.start()
        await client.leave()

    with started("--tcp", "0", "--no-start") as process:
        assert process.stdout is not None
        listening = re.search(rb":(\d+)\n", process.stdout.readline())
        assert listening
        run(scenario(int(listening[1])))
