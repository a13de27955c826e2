"""Warm-ups: the daemon prefills the document in use, once per state, and never instead of a completion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from codespec_lsp import daemon
from codespec_lsp.settings import OVERHEAD_MS

from tests.lsp.conversation import URI, Editor, run, until
from tests.lsp.fake_daemon import talking

OTHER = "file:///other.py"


def focus(client: Editor, uri: str, *at: int) -> None:
    position = {"position": dict(zip(("line", "character"), at, strict=True))} if at else {}
    client.notify("textDocument/didFocus", {"textDocument": {"uri": uri}, **position})


async def taken(client: Editor) -> None:
    """Wait until the server has processed everything sent before."""
    await client.request("workspace/executeCommand", {"command": "codespec.explain"})


def test_an_opened_document_is_read_ahead() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("import os\nx = \n")
            await until(lambda: bool(fake.warmed))
            body = fake.warmed[0].body
            assert body["warm_up"] is True and (body["prefix"], body["suffix"]) == ("import os", "\nx = \n")
            fake.warmed[0].end()
            await fake.warmed[0].ended.wait()
            fake.script = ["1"]
            assert await client.texts(1, 4) == ["x = 1"]
            assert fake.asked[0].body["document"] == body["document"], "it is the same document to the daemon"
            assert (await client.request("workspace/executeCommand", {"command": "codespec.explain"}))["result"]
            assert len(fake.warmed) == 1

    run(scenario())


def test_a_question_takes_the_warm_up_back() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            await until(lambda: bool(fake.warmed))
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]
            await fake.warmed[0].gone.wait()

    run(scenario())


def test_who_asks_at_once_gets_no_warm_up() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]
            focus(client, URI)
            client.type(2, 0, 4, "1")
            await taken(client)
            focus(client, OTHER)
            focus(client, URI)
            await until(lambda: bool(fake.warmed))
            assert [asked.body["version"] for asked in fake.warmed] == [2], "only as it is now"
            assert fake.warmed[0].body["prefix"] == "x = 1", "where it was edited last"

    run(scenario())


def test_each_document_is_read_once_as_it_is() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            for uri in (URI, OTHER):
                client.open("x = 1\n", uri=uri)
            await until(lambda: bool(fake.warmed))
            assert fake.warmed[0].body["path"].endswith("other.py"), "only the last of those opened together"
            for uri in (OTHER, URI, OTHER, URI):
                focus(client, uri)
            await until(lambda: len(fake.warmed) == 2)
            await fake.warmed[0].gone.wait()
            fake.warmed[1].end()
            await fake.warmed[1].ended.wait()
            client.open("y = 1\n", uri="file:///third.py")
            focus(client, OTHER)
            focus(client, URI)
            client.open("z = 1\n", uri="file:///fourth.py")
            await until(lambda: len(fake.warmed) == 3)
            paths = [asked.body["path"] for asked in fake.warmed]
            assert paths == ["other.py", "a.py", "fourth.py"]

    run(scenario())


def test_the_place_where_the_cursor_rests_is_read() -> None:
    """A new place in the same text is read too, the same one only once."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("one = 1\ntwo = 2\n\U0001f600 = 3\n")
            focus(client, URI, 1, 3)
            await until(lambda: bool(fake.warmed))
            focus(client, URI, 1, 3)
            await taken(client)
            assert not fake.warmed[0].gone.is_set(), "the same place again takes nothing back"
            fake.warmed[0].end()
            await fake.warmed[0].ended.wait()
            focus(client, URI, 0, 1)
            focus(client, URI, 2, 2)
            await until(lambda: len(fake.warmed) == 2)
            prefixes = [asked.body["prefix"] for asked in fake.warmed]
            assert prefixes == ["one = 1\ntwo", "one = 1\ntwo = 2\n\U0001f600"], "not the place that was only passed"
            client.type(2, 2, 2, "x")
            await fake.warmed[1].gone.wait()

    run(scenario())


def test_another_place_is_no_other_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lookup files are not sent again."""
    monkeypatch.setattr(daemon, "FILES_DELAY_S", 0.05)

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("one = 1\n", uri=OTHER)
            client.open("two = 2\nthree = 3\n")
            await until(lambda: len(fake.files) == 1)
            for line in (1, 0):
                focus(client, URI, line, 3)
                await until(lambda count=2 - line: len(fake.warmed) == count)  # type: ignore[misc]
                fake.warmed[-1].end()
                await asyncio.sleep(4 * daemon.FILES_DELAY_S)
            focus(client, OTHER, 0, 1)
            await until(lambda: len(fake.files) >= 2)
            first, second = (body["document"] for body in fake.files)
            assert first != second

    run(scenario())


@pytest.mark.parametrize("bad", [None, 3, {}, {"line": -1, "character": 0}, {"line": "1", "character": 0}])
def test_a_place_that_is_none_is_the_likely_one(bad: object) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("one = 1\ntwo = 2\n")
            client.notify("textDocument/didFocus", {"textDocument": {"uri": URI}, "position": bad})
            await until(lambda: bool(fake.warmed))
            assert fake.warmed[0].body["prefix"] == "one = 1"

    run(scenario())


def test_who_stops_typing_finds_the_next_prompt_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change without a request, as by accepting a suggestion, and after a request; each state once."""
    monkeypatch.setattr(daemon, "IDLE_DELAY_S", 0.2)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \ny = 2\n")
            assert await client.texts(0, 4) == ["x = 1"]
            client.type(2, 0, 4, "1")
            await until(lambda: bool(fake.warmed))
            assert (fake.warmed[0].body["prefix"], fake.warmed[0].body["suffix"]) == ("x = 1", "\ny = 2\n")
            client.type(3, 0, 5, "\n")
            await fake.warmed[0].gone.wait()
            await until(lambda: len(fake.warmed) == 2)
            assert fake.warmed[1].body["prefix"] == "x = 1\n"
            fake.warmed[1].end()
            await client.texts(1, 0)
            client.type(4, 1, 0, "z")
            await client.texts(1, 1)
            await until(lambda: fake.warmed[-1].body["version"] == 4)
            *between, _ = [asked.body["version"] for asked in fake.warmed]
            assert between in ([2, 3], [2, 3, 3]), "on a busy machine, once more after the request at version 3"

    run(scenario())


def test_the_daemon_learns_its_part_of_the_time() -> None:
    """One number for every request of a document, since prompts are laid out by it."""

    async def scenario() -> None:
        async with talking(budget_ms=900) as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            await until(lambda: bool(fake.warmed))
            for trigger in (1, 2):
                await client.texts(0, 4, trigger=trigger)
            given = [asked.body["first_answer_ms"] for asked in (*fake.warmed, *fake.asked)]
            assert len(given) >= 3 and set(given) == {900 - OVERHEAD_MS}

    run(scenario())


def test_what_is_not_completed_is_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with talking(languages={"lua": False}) as (client, fake):
            client.open("KEY=1\n", uri=f"file://{tmp_path}/.env")
            client.open("x = 1\n", uri="file:///a.lua", language="lua")
            for uri in (f"file://{tmp_path}/.env", "file:///a.lua"):
                focus(client, uri)
            client.open(" \n", uri="file:///blank.py")
            fake.script = ["1"]
            client.open("x = \n")
            await until(lambda: bool(fake.warmed))
            assert [asked.body["path"] for asked in fake.warmed] == ["a.py"]

    run(scenario())


def test_a_warm_up_that_fails_tells_nobody() -> None:
    async def scenario() -> None:
        async with talking(url="http://127.0.0.1:1") as (client, _):
            client.open("x = \n")
            await until(lambda: any(status["kind"] == "Warning" for status in client.heard("didChangeStatus")))
            assert not client.heard("didChangeStatus")[-1]["busy"]
            assert not client.heard("window/showMessage")
            assert await client.texts(0, 4) == []
            (message,) = [message["message"] for message in client.heard("window/showMessage")]
            assert "No daemon answers" in message

    run(scenario())
