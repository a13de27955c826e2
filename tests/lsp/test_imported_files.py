"""Definitions of imported files are sent although the files are not open, except those that must not be sent."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from codespec_lsp import exclusions, imports
from codespec_lsp.exclusions import MAX_DECISION_AGE_S
from codespec_lsp.imports import MAX_SEARCH_AGE_S
from codespec_lsp.outline import MAX_FILE
from codespec_lsp.prompt import MAX_SNIPPETS

from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import FakeDaemon, talking

PRICE = "def total(orders, currency='EUR'):\n    return sum(orders)\n"
HEAD = "def total(orders, currency='EUR'):\n"
Sent = list[tuple[str, str]]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "price.py").write_text(PRICE)
    return folder


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh files for every request, without cached decisions."""
    assert MAX_SEARCH_AGE_S <= MAX_DECISION_AGE_S
    monkeypatch.setattr(imports, "MAX_SEARCH_AGE_S", 0.0)
    monkeypatch.setattr("codespec_lsp.exclusions.MAX_DECISION_AGE_S", 0.0)
    monkeypatch.setattr("codespec_lsp.exclusions.DECISION_TIMEOUT_S", 60.0)  # a busy machine starts a thread late,
    monkeypatch.setattr(imports, "OUTLINE_TIMEOUT_S", 60.0)  # and a process too


class Writer:
    """A client that types into one document and requests completions at its end."""

    def __init__(self, client: Editor, fake: FakeDaemon, file: Path, text: str) -> None:
        self.client, self.fake, self.uri, self.text, self.version = client, fake, file.as_uri(), text, 1
        fake.script = ["1"]
        client.open(text, uri=self.uri)

    async def sent(self) -> Sent:
        """Return the snippets of other files in the next request that reaches the daemon.

        On a busy machine a request's time may be over before it does; then the writer types on.
        """
        asked = len(self.fake.asked)
        while len(self.fake.asked) == asked:
            last = self.text.rpartition("\n")[2]
            self.version += 1
            self.client.type(self.version, self.text.count("\n"), len(last), "y", uri=self.uri)
            self.text += "y"
            await self.client.texts(self.text.count("\n"), len(last) + 1, uri=self.uri, trigger=1)  # even if dismissed
            await asyncio.sleep(0.01)
        return [(Path(each["path"]).name, each["text"]) for each in self.fake.asked[-1].body["snippets"]]

    async def sends(self, *expected: tuple[str, str]) -> None:
        """Repeat requests until the snippets match: files are read shortly after they are found."""
        while (found := await self.sent()) != list(expected):
            assert len(found) <= len(expected), found
            await asyncio.sleep(0.05)


def test_what_an_imported_file_defines_goes_along(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            await Writer(client, fake, shop / "cart.py", "from price import total\nx = ").sends(("price.py", HEAD))
            client.open("import price\ny = ", uri=(shop / "b.py").as_uri())
            while not fake.warmed or "b.py" not in fake.warmed[-1].body["path"]:
                await asyncio.sleep(0.05)
            assert HEAD in [each["text"] for each in fake.warmed[-1].body["snippets"]], "it is read ahead"

    run(scenario())


def test_once_it_is_open_its_open_text_counts(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", "from price import total\nx = ")
            await writer.sends(("price.py", HEAD))
            client.open("def other():\n    pass\n", uri=(shop / "price.py").as_uri())
            await asyncio.sleep(0.2)
            await writer.sends(("price.py", "def other():\n"))

    run(scenario())


def test_a_file_that_is_open_under_another_name_comes_once(shop: Path) -> None:
    (shop / "link.py").symlink_to(shop / "price.py")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", "from price import total\nfrom link import total\nx = ")
            await writer.sends(("price.py", HEAD))
            client.open("def other():\n    pass\n", uri=(shop / "price.py").as_uri())
            await asyncio.sleep(0.2)
            await writer.sends(("price.py", "def other():\n"))

    run(scenario())


def test_without_a_repository_or_with_the_setting_off_nothing_is_read(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[str]()
    find = imports.find_files
    monkeypatch.setattr(imports, "find_files", lambda *each: looked.append(each[0]) or find(*each))

    async def scenario() -> None:
        text = "from price import total\nx = "
        async with talking() as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", text)
            await writer.sent()
            await asyncio.sleep(0.3)
            assert await writer.sent() == [] and looked
        looked.clear()
        async with talking(start={"rootUri": shop.as_uri()}, snippets=False) as (client, fake):
            assert await Writer(client, fake, shop / "cart.py", text).sent() == [] and not looked
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            (shop / ".gitignore").write_text("cart.py\n")
            client.open(text, uri=(shop / "cart.py").as_uri())
            assert await client.texts(1, 4, uri=(shop / "cart.py").as_uri()) == [] and not looked, "nor for one ignored"
        (tmp_path / ".git").mkdir()
        async with talking() as (client, fake):  # a file in a repository needs no open folder
            await Writer(client, fake, shop / "main.py", text).sends(("price.py", HEAD))

    run(scenario())


def hidden_ways(shop: Path) -> None:
    """Make files that must not be sent, under names that an import can spell."""
    (shop / ".gitignore").write_bytes(b"ignored.py\nfolder/\nnested/\ns\xe9cret.go\n")
    for name in ("ignored.py", "id_rsa", "globbed.py"):
        (shop / name).write_text(PRICE)
        (shop / f"to_{name.removesuffix('.py')}.py").symlink_to(shop / name)
    (shop.parent / "distant.py").write_text(PRICE)
    (shop / "distant.py").symlink_to(shop.parent / "distant.py")
    for folder in ("folder", "nested", "other"):
        (shop / folder).mkdir()
        (shop / folder / "deep.py").write_text(PRICE)
    (shop / "shown").symlink_to(shop / "folder")
    (shop / "nested/.git").mkdir()
    (shop / "other/.git").mkdir()  # a separate repository with its own rules
    (shop / "large.py").write_text(PRICE + "#" * MAX_FILE)
    (shop / "data.py").write_bytes(PRICE.replace("total", "to\0tal").encode())
    os.mkfifo(shop / "pipe.py")
    (shop / "loop.py").symlink_to(shop / "loop.py")


@pytest.mark.parametrize(
    "row",
    [
        "import ignored",
        "import globbed",
        "import to_ignored",
        "import to_id_rsa",
        "import to_globbed",
        "import distant",
        "from folder import deep",
        "from shown import deep",
        "from nested import deep",
        "from other import deep",
        "import large",
        "import data",
        "import pipe",
        "import loop",
    ],
)
def test_nothing_of_what_must_not_be_sent(shop: Path, row: str) -> None:
    hidden_ways(shop)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}, exclude=("globbed.py",)) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", f"{row}\nfrom price import total\nx = ")
            await writer.sends(("price.py", HEAD))
            await asyncio.sleep(0.2)
            await writer.sends(("price.py", HEAD))

    run(scenario())


def test_a_file_whose_name_is_not_utf_8_is_decided_on_like_any_other(shop: Path) -> None:
    hidden_ways(shop)
    with (shop / ".gitignore").open("ab") as file:
        file.write(b"\ns\xe9cret.go\n")
    (shop / "go.mod").write_text("module shop\n")
    (shop / "tax").mkdir()
    (shop / "tax/a.go").write_text("package tax\n\nfunc Tax(w int) int {\n\treturn w\n}\n")
    with open(os.fsencode(shop / "tax") + b"/s\xe9cret.go", "wb") as file:
        file.write(b"package tax\n\nfunc Secret(w int) int {\n\treturn w\n}\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.go", 'package cart\nimport "shop/tax"\nx = ')
            await writer.sends(("a.go", "func Tax(w int) int\n"))
            await asyncio.sleep(0.2)
            await writer.sends(("a.go", "func Tax(w int) int\n"))

    run(scenario())


def test_a_file_that_becomes_ignored_or_excluded_is_not_sent_any_more(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", "from price import total\nx = ")
            await writer.sends(("price.py", HEAD))
            client.notify("workspace/didChangeConfiguration", {"settings": {"codespec": {"exclude": ["price.py"]}}})
            assert await writer.sent() == []
            client.notify("workspace/didChangeConfiguration", {"settings": {"codespec": {"exclude": []}}})
            await writer.sends(("price.py", HEAD))
            (shop / ".codespecignore").write_text("price.py\n")
            assert await writer.sent() == []

    run(scenario())


def test_a_changed_file_and_a_new_import_are_found(shop: Path) -> None:
    (shop / "tax.py").write_text("def tax(price):\n    return 0\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", "from price import total\nx = ")
            await writer.sends(("price.py", HEAD))
            (shop / "price.py").write_text("def sum_up():\n    return 1\n")
            await writer.sends(("price.py", "def sum_up():\n"))
            writer.version += 1
            client.type(writer.version, 1, 0, "import tax\n", uri=writer.uri)
            writer.text = writer.text.replace("\nx", "\nimport tax\nx")
            await writer.sends(("tax.py", "def tax(price):\n"), ("price.py", "def sum_up():\n"))  # what is named first

    run(scenario())


def test_there_is_a_bound(shop: Path) -> None:
    for number in range(6):
        (shop / f"m{number}.py").write_text("".join(f"def f{number}_{n}(first, second): ...\n" for n in range(99)))

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "cart.py", "".join(f"import m{n}\n" for n in range(6)) + "x = ")
            while len(found := await writer.sent()) < 2:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            found = await writer.sent()
            assert MAX_SNIPPETS // 2 < sum(len(text) for _, text in found) <= MAX_SNIPPETS

    run(scenario())


def test_a_file_that_keeps_a_grammar_busy_holds_up_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of this text take half a minute to parse."""
    ask = imports.Worker.ask_beside
    limited = lambda worker, file, _: ask(worker, file, 1.0 if "Slow" in str(file) else 60.0)  # noqa: E731
    monkeypatch.setattr(imports.Worker, "ask_beside", limited)
    (shop / "Slow.java").write_text("a<" * (32 << 10))
    (shop / "Price.java").write_text("class Price {\n    int total(int w) {\n        return w;\n    }\n}\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writer = Writer(client, fake, shop / "Cart.java", "import Slow;\nimport Price;\nint x = ")
            answers = 0
            while not await writer.sent():
                await asyncio.sleep(0.01)
                answers += 1
            assert answers > 2, "they wait for it"
            assert [name for name, _ in await writer.sent()] == ["Price.java"]

    run(scenario())


def test_a_folder_that_does_not_answer_holds_up_little(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    find = exclusions.repository_of

    def wait(file: Path, roots: list[Path]) -> Path | None:
        answers.wait()
        return find(file, roots)

    monkeypatch.setattr(exclusions, "repository_of", wait)

    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            writers = [Writer(client, fake, shop / f"cart_{n}.py", "import price\nx = ") for n in range(8)]
            for writer in writers:  # more than the number of threads
                assert "price.py" not in dict(await writer.sent())
            answers.set()
            while "price.py" not in dict(await writers[0].sent()):
                await asyncio.sleep(0.05)

    try:
        run(scenario())
    finally:
        answers.set()


def test_names_that_are_none_break_no_answer(shop: Path) -> None:
    async def scenario() -> None:
        async with talking(start={"rootUri": shop.as_uri()}) as (client, fake):
            fake.script = ["1"]
            for uri in ("file:a.py", "file:///a%00b.py", "file:///" + "a" * 5000 + ".py", "untitled:Untitled-1"):
                client.open("import price\nx = ", uri=uri)
                assert len(await client.texts(1, 4, uri=uri)) <= 1
                client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
            await Writer(client, fake, shop / "cart.py", "import price\nx = ").sends(("price.py", HEAD))

    run(scenario())
