"""Next edits of the daemon's model: what is asked, what of its answers is shown, and when it is not asked at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.lsp.conversation import insertion, replacement, run, until
from tests.lsp.edit_conversation import UNCHANGED, command, done, hunk, next_edit, rows
from tests.lsp.fake_daemon import FakeDaemon, talking

TEXT = "".join(f"line_{number} = {number}\n" for number in range(40))
LATE = {"next_edit_budget_ms": 60_000}


def edited(client: Any, version: int = 2, row: int = 5, text: str = "# note\n") -> None:
    """Insert a line, which repeats nothing."""
    client.change(version, insertion(row, 0, text))


def trained(fake: FakeDaemon, *script: tuple[str, dict[str, Any]]) -> None:
    fake.edit_format, fake.edit_script = "sweep-server", list(script) or None


def test_an_edit_of_the_model() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            trained(fake, hunk(0, 6, 7, "line_5 = 50\n"), done(0, 3, 11))
            edit = await next_edit(client, 5, 6)
            assert (rows(edit), edit["source"]) == ([(6, "line_5 = 50\n")], "model")
            body = fake.edits[0].body
            assert (body["places"], body["first_row"], body["cursor"]) == ([5], 0, {"row": 5, "column": 6})
            assert body["history"] == [{"path": "a.py", "row": 5, "old": "", "new": "# note\n", "predicted": False}]
            assert body["text"].startswith("line_0") and 0 < body["deadline_ms"] < 60_000
            assert await next_edit(client, 5, 6) and len(fake.edits) == 1, "the answer is kept"

    run(scenario())


def test_what_the_user_types_of_an_edit_needs_no_new_answer() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            trained(fake, hunk(0, 6, 7, "line_5 = 5 + rest\n"), done(0, 3, 11))
            await next_edit(client, 5, 6)
            client.change(3, insertion(6, 10, " "))
            client.change(4, insertion(6, 11, "+"))
            edit = await next_edit(client, 6, 12)
            assert rows(edit) == [(6, "line_5 = 5 + rest\n")] and edit["hunks"][0]["oldText"] == "line_5 = 5 +\n"
            assert len(fake.edits) == 1
            edited(client, 5, 0)
            assert rows(await next_edit(client, 6, 12)) == [(7, "line_5 = 5 + rest\n")], "lines above move it"
            assert len(fake.edits) == 1
            client.change(6, insertion(7, 12, "!"))
            fake.edit_script = [done(0, 3, 11, UNCHANGED)]
            assert await next_edit(client, 7, 13) == UNCHANGED and len(fake.edits) == 2

    run(scenario())


def test_the_places_stay_while_the_cursor_moves_a_little() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            trained(fake, done(0, 3, 11, UNCHANGED))
            for line in (5, 7, 4, 20, 21):
                await next_edit(client, line, 0)
            assert [asked.body["places"] for asked in fake.edits] == [[5], [5], [5], [20], [20]]

    run(scenario())


def test_places_of_the_removed_word_are_asked_if_nothing_changes_here() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open("value = 1\n" + TEXT + "print(value)\n")
            client.change(2, replacement(0, 0, 0, 9, "other(2, 3)"))
            fake.edit_format = "chat"
            answer = asyncio.ensure_future(next_edit(client, 0, 5))
            await until(lambda: len(fake.edits) == 1)
            fake.edits[0].words.put_nowait(done(0, 0, 6, UNCHANGED))
            await until(lambda: len(fake.edits) == 2)
            assert fake.edits[1].body["places"] == [41]
            fake.edits[1].words.put_nowait(hunk(0, 41, 42, "print(other(2, 3))\n"))
            fake.edits[1].words.put_nowait(done(0, 39, 43))
            assert rows(await answer) == [(41, "print(other(2, 3))\n")]

    run(scenario())


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([hunk(0, 500, 501, "x\n"), done(0, 3, 11)], "adds lines above"),
        ([hunk(0, 20, 21, "outside the window\n"), done(0, 3, 11)], "adds lines above"),
        ([hunk(0, -5, 4, "x\n"), done(0, -5, 11)], "adds lines above"),
        ([hunk(0, 4, 4, "above the cursor\n"), done(0, 3, 11)], "adds lines above"),
        ([hunk(0, 6, 6, "\n\n"), done(0, 3, 11)], "blank lines"),
        ([hunk(0, 5, 6, ""), done(0, 3, 11)], "reverts a recent"),
        ([hunk(0, 6, 7, "<|cursor|>line_5\n"), done(0, 3, 11)], "marks"),
        ([hunk(0, 6, 7, "token = 'ghp_" + "a" * 36 + "'\n"), done(0, 3, 11)], "secret"),
        ([hunk(0, 6, 7, "x = 1\n"), done(0, 3, 11, "The answer was cut at max_tokens before it ended.")], "cut"),
        ([hunk(0, 6, 7, "line_5 = 5\n"), done(0, 3, 11)], "adds lines above"),
        ([hunk(0, 6, 7, f"x = {number}\n") for number in range(300)], "did not end"),
    ],
)
def test_what_is_never_shown(events: list[tuple[str, dict[str, Any]]], reason: str) -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            trained(fake, *events)
            assert reason in await next_edit(client, 5, 6)
            assert reason in (await client.status())["nextEdit"]["reason"]

    run(scenario())


@pytest.mark.parametrize("edit", [hunk(0, 330, 331, "x = 1\n"), hunk(0, 330, 333, "\n"), hunk(0, 330, 330, "x\n")])
def test_no_line_inside_a_key_is_changed(edit: tuple[str, dict[str, Any]]) -> None:
    """The model sees these lines blank, and one of them alone does not look like a part of a key."""

    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            key = "".join(f"{'A' * 62}{row:02}\n" for row in range(20))
            client.open(f"{TEXT * 8}KEY = b'''-----BEGIN PRIVATE KEY-----\n{key}-----END PRIVATE KEY-----'''\n")
            edited(client, row=0)
            trained(fake, edit, done(0, 326, 338))
            assert "secret" in await next_edit(client, 328, 0, "invoked")
            assert "AAAA" not in str(fake.edits[0].body)

    run(scenario())


def test_an_answer_that_never_ends_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with talking(next_edit_budget_ms=300) as (client, fake):
            client.open(TEXT)
            edited(client)
            fake.edit_format = "chat"
            assert "nextEditBudgetMs" in await next_edit(client, 5, 6)
            await fake.edits[0].gone.wait()

    run(scenario())


def test_a_change_ends_the_daemons_work() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            fake.edit_format = "chat"
            answer = asyncio.ensure_future(next_edit(client, 5, 6))
            await until(lambda: len(fake.edits) == 1)
            client.type(3, 6, 0, "x")
            assert "changed" in await answer
            await fake.edits[0].gone.wait()

    run(scenario())


@pytest.mark.parametrize(("known", "reason"), [(None, "predicts no edits: restart"), ("", "no format for edits")])
def test_a_daemon_without_edits_is_asked_once(known: str | None, reason: str) -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            client.open(TEXT)
            fake.edit_format = known
            for version in (2, 3, 4):
                edited(client, version)
                assert reason in await next_edit(client, 5, 6)
            assert (fake.stats_asked, fake.edits) == (1, [])
            trained(fake, hunk(0, 8, 9, "x = 0\n"), done(0, 3, 11))
            await command(client, "codespec.restart")
            assert rows(await next_edit(client, 5, 6))

    run(scenario())


def test_no_daemon_is_started_for_an_edit() -> None:
    async def scenario() -> None:
        async with talking(url="http://127.0.0.1:1", **LATE) as (client, _):
            client.open(TEXT)
            edited(client)
            assert "No daemon is running" in await next_edit(client, 5, 6)

    run(scenario())


def test_the_setting_keeps_the_model_out() -> None:
    async def scenario() -> None:
        async with talking(next_edit_model=False, **LATE) as (client, fake):
            client.open(TEXT)
            edited(client)
            trained(fake, hunk(0, 6, 7, "x = 1\n"), done(0, 3, 11))
            assert isinstance(await next_edit(client, 5, 6), str)
            assert (fake.stats_asked, fake.edits) == (0, [])

    run(scenario())


def test_secrets_do_not_leave() -> None:
    async def scenario() -> None:
        async with talking(**LATE) as (client, fake):
            secret = "ghp_" + "b" * 36
            trained(fake, done(0, 3, 11, UNCHANGED))
            client.open(TEXT)
            client.open("A=1\n", "file:///x/.env", "shell")
            client.type(2, 0, 3, secret, "file:///x/.env")
            client.open(f"key = '{secret}'\n" + "x\n" * 300 + TEXT, "file:///b.py")
            client.type(2, 306, 0, "# note\n", "file:///b.py")
            await next_edit(client, 306, 6, uri="file:///b.py")
            client.type(3, 0, 0, "# ", "file:///b.py")
            assert "secret" in await next_edit(client, 0, 2, "invoked", uri="file:///b.py")
            edited(client)
            assert await next_edit(client, 5, 6) == UNCHANGED
            sent = str([asked.body for asked in fake.edits])
            assert len(fake.edits) == 2 and "ghp_" not in sent and ".env" not in sent

    run(scenario())
