"""One document under several spellings of its URI, as editors and plugins mix them, with the real process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import FakeDaemon, talking
from tests.lsp.test_process_hostile import on_a_server
from tests.lsp.test_uris import SPELLINGS

FILES = [spellings for spellings in SPELLINGS if spellings[0].startswith(("file:", "untitled:"))]


async def goes_through_its_life(client: Editor, opened: str, asked: str) -> None:
    """Open, visit, change and close it under different spellings."""
    client.open("x = \n", uri=opened)
    client.notify("textDocument/didFocus", {"textDocument": {"uri": asked}})
    assert await client.texts(0, 4, uri=asked) == ["x = 1"]
    client.type(2, 0, 0, "y", uri=asked)
    assert await client.texts(0, 5, uri=opened) == ["yx = 1"]
    client.notify("textDocument/didClose", {"textDocument": {"uri": asked}})
    assert await client.texts(0, 5, uri=opened) == []
    status = await client.status()
    assert (status["kind"], "did not open" in status["message"]) == ("Inactive", True)


def test_documents_are_known_by_any_spelling() -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        for opened, *others in FILES:
            for other in others:
                await goes_through_its_life(client, opened, other)
                await goes_through_its_life(client, other, opened)

    on_a_server(scenario)


@pytest.mark.parametrize("spellings", FILES, ids=lambda spellings: spellings[0])
def test_what_is_told_of_a_document_has_the_spelling_that_asked(spellings: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with talking(budget_ms=200) as (client, fake):
            client.open("x = \n", uri=spellings[0])
            _, reply = client.ask(0, 4, uri=spellings[-1])
            (asked := await fake.question()).say("1\n")
            await reply
            asked.say("y = 2\n")
            asked.end()
            assert (await client.hear("codespec/more"))["uri"] == spellings[-1]

    run(scenario())


def test_another_spelling_is_no_other_file(tmp_path: Path) -> None:
    """No snippet of the document itself, and one set of exclusions."""
    (tmp_path / ".codespecignore").write_text("g\u00e9n/\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": tmp_path.as_uri()}) as (client, fake):
            fake.script = ["1"]
            client.open("import os\nx = \n", uri="file:///p/%C3%A9.py")
            client.open("import os\nx = \n", uri="file:///p/\u00e9.py")
            assert await client.texts(1, 4, uri="file:///p/%c3%a9.py") == ["x = 1"]
            assert fake.asked[0].body["snippets"] == []
            for uri in (f"file://{tmp_path}/g\u00e9n/a.py", f"file://{tmp_path}/g%c3%a9n/a.py"):
                client.open("x = \n", uri=uri)
                assert await client.texts(0, 4, uri=uri) == []
                assert "excluded by .codespecignore" in (await client.status())["message"]

    run(scenario())
