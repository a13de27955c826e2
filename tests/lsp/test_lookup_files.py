"""Lookup files are sent to the daemon when a document is visited: open, imported and neighbouring ones.

Files that must not be sent are excluded.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp import daemon
from codespec_lsp.daemon import MAX_TOGETHER
from codespec_lsp.imports import MAX_BESIDE

from codespec.api.limits import MAX_SIDE
from tests.lsp.conversation import Editor, run, until
from tests.lsp.fake_daemon import FakeDaemon, talking


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "FILES_DELAY_S", 0.0)
    monkeypatch.setattr(daemon, "FILES_RETRY_S", 0.01)
    monkeypatch.setattr("codespec_lsp.exclusions.MAX_DECISION_AGE_S", 0.0)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a repository with files in two folders."""
    folder = tmp_path / "shop"
    (folder / "tools").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "price.py").write_text("def price(): ...\n")
    (folder / "notes.txt").write_text("notes\n")
    (folder / "tools" / "count.py").write_text("def count(): ...\n")
    return folder


def names(body: dict[str, Any]) -> list[str]:
    return [Path(file["path"]).name for file in body["files"]]


async def visit(client: Editor, fake: FakeDaemon, file: Path, text: str) -> dict[str, Any]:
    """Open a document and return the files sent for it."""
    before = len(fake.files)
    client.open(text, uri=file.as_uri())
    await until(lambda: len(fake.files) > before)
    return fake.files[-1]


def test_imported_files_and_those_beside_it_go_whole(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            body = await visit(client, fake, shop / "cart.py", "from tools.count import count\nx = ")
            assert names(body) == ["count.py", "price.py"]
            assert [file["text"] for file in body["files"]] == ["def count(): ...\n", "def price(): ...\n"]
            await until(lambda: bool(fake.warmed))
            assert body["document"] == fake.warmed[0].body["document"]

    run(scenario())


def test_open_files_go_first_and_as_they_are_in_the_editor(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            client.open("def price(): return 1\n", uri=(shop / "price.py").as_uri())
            body = await visit(client, fake, shop / "tools" / "sum.py", "x = ")
            assert names(body) == ["price.py", "count.py"] and body["files"][0]["text"] == "def price(): return 1\n"

    run(scenario())


def test_a_closed_document_is_forgotten(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            sent = await visit(client, fake, shop / "cart.py", "x = ")
            client.notify("textDocument/didClose", {"textDocument": {"uri": (shop / "cart.py").as_uri()}})
            await until(lambda: len(fake.files) == 2)
            assert fake.files[1] == {"document": sent["document"], "files": []}

    run(scenario())


def test_nothing_secret_ignored_or_of_another_repository_goes(shop: Path, tmp_path: Path) -> None:
    (shop / ".gitignore").write_text("ignored.py\n")
    for name in ("ignored.py", "excluded.py", "id_rsa.py", "binary.py", "long.py", "empty.py"):
        (shop / name).write_text("secret = 1\n")
    (shop / "binary.py").write_bytes(b"\xff\xfe\x00")
    (shop / "long.py").write_text("x" * (MAX_SIDE + 1))
    (shop / "empty.py").write_text(" \n")
    (tmp_path / "outside.py").write_text("outside = 1\n")
    (shop / "link.py").symlink_to(tmp_path / "outside.py")
    (shop / ".env").write_text("KEY=1\n")
    (shop / "env.py").symlink_to(shop / ".env")
    os.mkfifo(shop / "pipe.py")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}, exclude=("excluded.py",)) as (client, fake):
            body = await visit(client, fake, shop / "cart.py", "import outside, excluded, ignored\n")
            sent = names(body)
            assert not {"ignored.py", "excluded.py", "binary.py", "long.py", "empty.py", "pipe.py"} & {*sent}
            assert not {"link.py", "env.py", "outside.py"} & {*sent} and "price.py" in sent

    run(scenario())


def test_nothing_goes_where_the_user_said_so_or_from_an_excluded_document(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}, snippets=False) as (client, fake):
            client.open("x = ", uri=(shop / "cart.py").as_uri())
            await until(lambda: bool(fake.warmed))
            assert not fake.files
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            client.open("x = ", uri=(shop / ".env").as_uri())
            await visit(client, fake, shop / "cart.py", "x = ")
            assert len(fake.files) == 1 and ".env" not in names(fake.files[0])

    run(scenario())


def test_the_bounds_hold(shop: Path) -> None:
    for number in range(MAX_BESIDE + 4):
        (shop / f"a{number}.py").write_text("x = 1\n" * 6000)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            body = await visit(client, fake, shop / "cart.py", "x = ")
            assert sum(len(file["text"]) for file in body["files"]) <= MAX_TOGETHER
            assert 7 <= len(body["files"]) <= MAX_BESIDE

    run(scenario())


def test_a_daemon_that_is_starting_gets_them_later_and_an_older_one_is_left_alone(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            fake.file_refusals = [503, 503]
            body = await visit(client, fake, shop / "cart.py", "x = ")
            assert names(body) == ["price.py"] and not fake.file_refusals
            fake.file_refusals, before = [404], len(fake.files)
            client.open("x = ", uri=(shop / "tools" / "sum.py").as_uri())
            await until(lambda: not fake.file_refusals)
            await visit(client, fake, shop / "other.py", "x = ")
            assert len(fake.files) == before + 1, "what an older daemon does not know is not asked again"

    run(scenario())


def test_a_folder_that_does_not_answer_holds_up_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, looked = threading.Event(), list[str]()

    def hang(uri: str, *_: object) -> list[tuple[str, str]]:
        looked.append(uri)
        answers.wait(30)
        return []

    monkeypatch.setattr(daemon, "find_files", hang)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            fake.script = ["1"]
            for number in range(40):  # more than the number of threads that may wait for files
                client.open("x = ", uri=(shop / f"d{number}.py").as_uri())
                await asyncio.sleep(0.02)
            assert await client.texts(0, 4, uri=(shop / "d39.py").as_uri(), trigger=1) == ["x = 1"]
            assert len(looked) == 1
            answers.set()

    run(scenario())


def test_closing_another_document_ends_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "FILES_DELAY_S", 0.2)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            client.open("y = ", uri=(shop / "other.py").as_uri())
            client.open("x = ", uri=(shop / "cart.py").as_uri())
            client.notify("textDocument/didClose", {"textDocument": {"uri": (shop / "other.py").as_uri()}})
            await until(lambda: bool(fake.files))
            assert names(fake.files[0]) == ["price.py"]

    run(scenario())
