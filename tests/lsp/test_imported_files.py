"""What imported files define goes along though they are not open, and nothing of those that must not be sent."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp import imported_files
from codespec_lsp.imported_files import LOOK_AGAIN, MOST_BYTES, MOST_CHARACTERS

from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import FakeDaemon, talking

PRICE = "def total(orders, currency='EUR'):\n    return sum(orders)\n"
HEAD = "def total(orders, currency='EUR'):\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "price.py").write_text(PRICE)
    return folder


async def sent(client: Editor, fake: FakeDaemon, file: Path, text: str, **more: Any) -> list[tuple[str, str]]:
    """The snippets that go along with a question at a document's end, which is opened a moment before."""
    fake.script = ["1"]
    client.open(text, uri=file.as_uri(), **more)
    await asyncio.sleep(0.25)
    return await asked(client, fake, file, text)


async def asked(client: Editor, fake: FakeDaemon, file: Path, text: str) -> list[tuple[str, str]]:
    line = text.count("\n")
    await client.texts(line, len(text.rpartition("\n")[2]), uri=file.as_uri())
    return [(Path(each["path"]).name, each["text"]) for each in fake.asked[-1].body["snippets"]]


def test_what_an_imported_file_defines_goes_along(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            assert await sent(client, fake, shop / "cart.py", "from price import total\nx = ") == [("price.py", HEAD)]
            assert fake.warmed[0].body["snippets"] == fake.asked[0].body["snippets"], "it has been read ahead"

    run(scenario())


def test_once_it_is_open_its_open_text_counts(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            client.open("def other():\n    pass\n", uri=(shop / "price.py").as_uri())
            found = await sent(client, fake, shop / "cart.py", "from price import total\nx = ")
            assert found == [("price.py", "def other():\n")]

    run(scenario())


def test_without_a_repository_or_with_the_setting_off_nothing_is_read(shop: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            assert await sent(client, fake, shop / "cart.py", "from price import total\nx = ") == []
        async with talking(start={"rootUri": shop.as_uri()}, snippets=False) as (client, fake):
            assert await sent(client, fake, shop / "cart.py", "from price import total\nx = ") == []
        (tmp_path / ".git").mkdir()
        async with talking() as (client, fake):
            found = await sent(client, fake, shop / "cart.py", "from price import total\nx = ")
            assert found == [("price.py", HEAD)], "a file of a repository needs no open folder"

    run(scenario())


def test_nothing_of_secret_ignored_excluded_and_distant_files(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "distant.py").write_text(PRICE)
    (shop / "distant.py").symlink_to(tmp_path / "distant.py")
    (shop / "credentials.py").write_text(PRICE)
    (shop / "linked.py").symlink_to(shop / "credentials.py")
    (shop / "ignored.py").write_text(PRICE)
    (shop / "globbed.py").write_text(PRICE)
    (shop / "large.py").write_text(PRICE + "#" * MOST_BYTES)
    (shop / "data.py").write_bytes(PRICE.replace("total", "to\0tal").encode())
    (shop / ".gitignore").write_text("ignored.py\n")
    os.mkfifo(shop / "pipe.py")
    names = ("distant", "credentials", "linked", "ignored", "globbed", "large", "data", "pipe", "price")
    text = "".join(f"import {name}\n" for name in names) + "x = "

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}, exclude=("globbed.py",)) as (client, fake):
            found = [name for name, _ in await sent(client, fake, shop / "cart.py", text)]
            assert found == []  # six files are looked at, and none of them may be sent
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            few = "import large, data, pipe, price\nx = "
            assert await sent(client, fake, shop / "cart.py", few) == [("price.py", HEAD)]

    run(scenario())


def test_a_file_that_becomes_ignored_is_not_sent_any_more(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec_lsp.exclusions.DECIDE_AGAIN", 0.0)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            text = "from price import total\nx = "
            assert await sent(client, fake, shop / "cart.py", text)
            (shop / ".codespecignore").write_text("price.py\n")
            client.type(2, 1, 4, "y", uri=(shop / "cart.py").as_uri())
            assert await asked(client, fake, shop / "cart.py", text + "y") == []

    run(scenario())


def test_a_changed_file_and_a_new_import_are_found_after_a_while(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported_files, "LOOK_AGAIN", 0.0)
    assert LOOK_AGAIN <= 10
    (shop / "tax.py").write_text("def tax(price):\n    return 0\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            file, text = shop / "cart.py", "from price import total\nx = "
            assert await sent(client, fake, file, text) == [("price.py", HEAD)]
            (shop / "price.py").write_text("def sum_up():\n    return 1\n")
            client.type(2, 1, 0, "import tax\n", uri=file.as_uri())
            text = "from price import total\nimport tax\nx = "
            for version in range(3, 6):  # the first question begins to look
                client.type(version, 2, len(text.rpartition("\n")[2]), "y", uri=file.as_uri())
                text += "y"
                found = await asked(client, fake, file, text)
                await asyncio.sleep(0.1)
            assert found == [("price.py", "def sum_up():\n"), ("tax.py", "def tax(price):\n")]

    run(scenario())


def test_there_is_a_bound(shop: Path) -> None:
    for number in range(6):
        (shop / f"m{number}.py").write_text("".join(f"def function_{n}(first, second): ...\n" for n in range(99)))

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            text = "".join(f"import m{number}\n" for number in range(6)) + "x = "
            found = await sent(client, fake, shop / "cart.py", text)
            assert MOST_CHARACTERS // 2 < sum(len(text) for _, text in found) <= MOST_CHARACTERS

    run(scenario())


def test_a_folder_that_does_not_answer_holds_up_no_answer(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(imported_files, "find_imported", lambda *_: [shop / "price.py"] if answers.wait() else [])

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            for number in range(8):  # more than there are threads
                found = await sent(client, fake, shop / f"cart_{number}.py", "import price\nx = ")
                assert "price.py" not in dict(found)
            answers.set()
            await asyncio.sleep(0.1)
            found = await sent(client, fake, shop / "cart.py", "import price\nx = ")
            assert dict(found)["price.py"] == HEAD

    try:
        run(scenario())
    finally:
        answers.set()
