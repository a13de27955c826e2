"""What the language server reports as accepted: once it has settled, of files that may be sent, to who keeps it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp import exclusions, outcomes

from tests.lsp.conversation import Editor, replacement, run, until
from tests.lsp.fake_daemon import FakeDaemon, talking

SETTLE = 0.2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "SETTLE", SETTLE)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository."""
    (tmp_path / "shop" / ".git").mkdir(parents=True)
    (tmp_path / "shop" / ".gitignore").write_text("build/\n")
    return tmp_path / "shop"


async def accept(client: Editor, fake: FakeDaemon, uri: str, ends: str = "\n") -> dict[str, Any]:
    """Takes a suggestion whole, as a client with commands does; the item."""
    client.open(f"x = {ends}y = 2{ends}", uri=uri)
    fake.script = ["foo(1,\n", "    2)"]
    (item,) = await client.items(0, 4, uri=uri)
    client.type(2, 0, 4, item["insertText"].removeprefix("x = "), uri=uri)
    await client.request("workspace/executeCommand", item["command"])
    return item


async def settled(client: Editor) -> None:
    await asyncio.sleep(2 * SETTLE)
    await client.status()


def test_what_was_accepted_is_reported_once_with_what_is_around_it(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            await accept(client, fake, (shop / "src" / "a.py").as_uri(), "\r\n")
            await until(lambda: bool(fake.outcomes))
            await settled(client)
            (body,) = fake.outcomes
            assert (body["root"], body["path"]) == (str(shop), str(shop / "src" / "a.py"))
            assert (body["lead"], body["text"], body["following"]) == ("x = ", "foo(1,\n    2)", "\ny = 2\n")
            assert body["language"] == "python"

    run(scenario())


def test_pieces_make_one_report(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            uri = (shop / "a.py").as_uri()
            client.open("x = \n", uri=uri)
            fake.script = ["foo(first, second)"]
            await client.items(0, 4, uri=uri)
            client.type(2, 0, 4, "foo(", uri=uri)
            client.type(3, 0, 8, "first, ", uri=uri)
            await settled(client)
            assert [body["text"] for body in fake.outcomes] == ["foo(first, "]

    run(scenario())


def test_what_is_undone_at_once_is_not_reported(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            uri = (shop / "a.py").as_uri()
            await accept(client, fake, uri)
            client.change(3, replacement(0, 4, 1, 6, ""), uri=uri)
            await settled(client)
            assert fake.outcomes == []

    run(scenario())


def test_what_is_typed_by_hand_is_not_reported(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            uri = (shop / "a.py").as_uri()
            client.open("x = \n", uri=uri)
            fake.script = ["foo(1)"]
            await client.items(0, 4, uri=uri)
            for place, key in enumerate("foo(1)"):
                client.type(2 + place, 0, 4 + place, key, uri=uri)
            await settled(client)
            assert fake.outcomes == []

    run(scenario())


def test_a_file_of_no_repository_is_not_reported(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            await accept(client, fake, (shop.parent / "alone.py").as_uri())
            await settled(client)
            assert fake.outcomes == []

    run(scenario())


def test_a_file_that_was_ignored_since_its_completion_is_not_reported(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes = []
            await accept(client, fake, (shop / "later.py").as_uri())
            (shop / ".gitignore").write_text("later.py\n")
            await settled(client)
            assert fake.outcomes == []

    monkeypatch.setattr(exclusions, "DECIDE_AGAIN", 0.0)
    run(scenario())


def test_a_daemon_that_does_not_say_that_it_keeps_them_is_sent_none(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            await accept(client, fake, (shop / "a.py").as_uri())
            await settled(client)
            assert fake.outcome_posts == 0
            assert (await client.status())["kind"] == "Normal"

    run(scenario())


def test_a_daemon_that_refuses_is_not_asked_again(shop: Path) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.outcomes, fake.refuses_outcomes = [], True
            await accept(client, fake, (shop / "a.py").as_uri())
            await until(lambda: fake.outcome_posts == 1)
            await settled(client)
            assert fake.outcome_posts == 1 and (await client.status())["kind"] == "Normal"

    run(scenario())
