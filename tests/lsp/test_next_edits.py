"""`codespec/nextEdit` from the editor's side: what is suggested, in which order, and why there is nothing."""

from __future__ import annotations

import asyncio

import pytest
from codespec_lsp.settings import EditorSettings
from codespec_lsp.syntax import DocumentTree

from tests.lsp.conversation import URI, insertion, replacement, run
from tests.lsp.edit_conversation import command, next_edit, request_params, rows
from tests.lsp.fake_daemon import editor, talking

TEXT = "def total(prices):\n    cost = 0\n    for price in prices:\n        cost = cost + price\n    return cost\n"
RENAME = replacement(1, 4, 1, 8, "amount")


@pytest.fixture(scope="module", autouse=True)
def _parsing() -> None:
    """Start what parses: on a busy machine, that alone takes longer than the budget of an edit."""

    async def parse() -> None:
        tree = DocumentTree("python", lambda: TEXT, [], lambda: None)
        await tree.refresh()
        tree.close()

    asyncio.run(parse())


def test_a_renamed_name_is_offered_at_its_other_places() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open(TEXT)
            client.change(2, RENAME)
            edit = await next_edit(client, 1, 10)
            assert rows(edit) == [(3, "        amount = amount + price\n"), (4, "    return amount\n")]
            assert edit["textDocument"] == {"uri": URI, "version": 2}
            second = edit["hunks"][1]
            assert second["range"] == {"start": {"line": 4, "character": 0}, "end": {"line": 5, "character": 0}}
            assert second["oldText"] == "    return cost\n"
            assert not fake.asked, "without a daemon"

    run(scenario())


def test_the_hunks_are_visited_from_the_cursor_on() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open(TEXT)
            client.change(2, RENAME)
            assert [row for row, _ in rows(await next_edit(client, 4, 10))] == [4, 3]

    run(scenario())


def test_accepted_hunks_leave_the_others() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open(TEXT)
            client.change(2, RENAME)
            edit = await next_edit(client, 1, 10)
            client.notify("codespec/didShowEdit", {"id": edit["id"]})
            client.change(3, {"range": edit["hunks"][0]["range"], "text": edit["hunks"][0]["newText"]})
            await command(client, "codespec.acceptEdit", edit["id"], 0)
            again = await next_edit(client, 3, 10, "accepted")
            assert rows(again) == [(4, "    return amount\n")] and again["id"] != edit["id"]
            client.change(4, {"range": again["hunks"][0]["range"], "text": again["hunks"][0]["newText"]})
            await command(client, "codespec.acceptEdit", again["id"], 0)
            assert isinstance(await next_edit(client, 4, 10, "accepted"), str)
            counters = (await client.status())["counters"]
            assert (counters["editsShown"], counters["editsAccepted"], counters["editsDismissed"]) == (1, 2, 0)

    run(scenario())


def test_a_dismissed_edit_does_not_come_back() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open("\n" * 20 + TEXT)
            client.change(2, replacement(21, 4, 21, 8, "amount"))
            edit = await next_edit(client, 21, 10)
            await command(client, "codespec.dismissEdit", edit["id"])
            assert "dismissed" in await next_edit(client, 21, 10, "moved")
            client.type(3, 0, 0, "# a line above\n")
            client.change(4, replacement(22, 4, 22, 10, "cost"))
            client.change(5, replacement(22, 4, 22, 8, "amount"))
            assert "dismissed" in await next_edit(client, 22, 10, "invoked"), "though the lines have moved"

    run(scenario())


def test_what_was_undone_is_not_suggested_again() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open(TEXT)
            client.change(2, RENAME)
            client.change(3, replacement(1, 4, 1, 10, "cost"))
            assert isinstance(await next_edit(client, 1, 8), str)
            client.change(4, RENAME)
            assert rows(await next_edit(client, 1, 8))

    run(scenario())


def test_a_change_cancels_and_ranges_are_of_the_text_at_the_request() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open(TEXT)
            client.change(2, RENAME)
            _, first = client.begin("codespec/nextEdit", request_params(1, 10))
            client.type(3, 0, 0, "x")
            _, second = client.begin("codespec/nextEdit", request_params(1, 10))
            result = (await first)["result"]
            assert result["edits"] == [] and "changed" in result["reason"]
            assert "result" in await second

    run(scenario())


def test_every_silence_has_its_reason_also_in_the_status() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            assert "not open" in await next_edit(client, 0, 0)
            client.open(TEXT)
            assert "Nothing was edited" in await next_edit(client, 0, 0)
            client.change(2, insertion(5, 0, "x = 1\n" * 60))
            assert "at once" in await next_edit(client, 6, 0)
            assert "at once" in (await client.status())["nextEdit"]["reason"]
            client.open("x" * 2000 + "\ny\n", "file:///long.py")
            client.type(2, 1, 0, "z", "file:///long.py")
            assert "too long" in await next_edit(client, 1, 1, "invoked", "file:///long.py")

    run(scenario())


def test_secret_files_and_those_that_are_off_get_none() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open("A=1\nB=1\n", "file:///x/.env", "shell")
            client.type(2, 0, 3, "2", "file:///x/.env")
            assert "secrets" in await next_edit(client, 0, 4, uri="file:///x/.env")
        async with talking(next_edit="off") as (client, _):
            client.open(TEXT)
            client.change(2, RENAME)
            assert "codespec.nextEdit" in await next_edit(client, 1, 10)

    run(scenario())


def test_line_ends_and_a_last_line_without_one() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open("cost = 0\r\nx = 1\r\nprint(cost)")
            client.change(2, replacement(0, 0, 0, 4, "amount"))
            hunk = (await next_edit(client, 0, 6))["hunks"][0]
            assert hunk["newText"] == "print(amount)"
            assert hunk["range"] == {"start": {"line": 2, "character": 0}, "end": {"line": 2, "character": 11}}

    run(scenario())


def test_ten_thousand_edits_and_positions_outside() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open("x\n" * 1000)
            for number in range(10_000):
                client.type(number + 2, number % 1000, 0, "a")
            assert isinstance(await next_edit(client, 5000, 5000), str)
            reply = await client.request("codespec/nextEdit", {"textDocument": {"uri": URI}})
            assert reply["error"]["code"] == -32602 and "position" in reply["error"]["message"]

    run(scenario())


def test_copilots_clients_get_one_small_hunk() -> None:
    async def scenario() -> None:
        async with talking() as (client, _):
            client.open("cost = 0\nprint('😀', cost)\nreturn cost\n")
            client.change(7, replacement(0, 0, 0, 4, "amount"))
            params = {"textDocument": {"uri": URI, "version": 7}, "position": {"line": 0, "character": 6}}
            reply = await client.request("textDocument/copilotInlineEdit", {**params, "context": {"triggerKind": 2}})
            (edit,) = reply["result"]["edits"]
            assert edit["textDocument"] == {"uri": URI, "version": 7}
            start, end = edit["range"]["start"], edit["range"]["end"]
            assert (start["line"], end["line"], edit["text"]) == (1, 1, "amount")
            assert (start["character"], end["character"]) == (12, 16), "in UTF-16 units"
            client.notify("textDocument/didShowInlineEdit", {"item": {"command": edit["command"]}})
            client.change(8, {"range": edit["range"], "text": edit["text"]})
            await command(client, edit["command"]["command"], *edit["command"]["arguments"])
            counters = (await client.status())["counters"]
            assert (counters["editsShown"], counters["editsAccepted"]) == (1, 1)

    run(scenario())


def test_copilots_clients_count_in_utf_16_and_find_nothing_to_sign_in_to() -> None:
    async def scenario() -> None:
        async with editor(EditorSettings(start_daemon=False), copilot=True) as client:
            capabilities = await client.start(capabilities={"general": {"positionEncodings": ["utf-8", "utf-16"]}})
            assert capabilities["positionEncoding"] == "utf-16"
            for method in ("checkStatus", "signIn"):
                assert (await client.request(method, {}))["result"] == {"status": "OK", "user": "codespec"}
            assert (await client.request("setEditorInfo", {"editorInfo": {}}))["result"] == "OK"
            assert (await client.request("getVersion", {}))["result"]["version"]
            client.open("cost = 0\nprint('😀', cost)\n")
            client.change(2, replacement(0, 0, 0, 4, "amount"))
            params = {"textDocument": {"uri": URI, "version": 2}, "position": {"line": 0, "character": 6}}
            (edit,) = (await client.request("textDocument/copilotInlineEdit", params))["result"]["edits"]
            assert edit["range"]["start"]["character"] == 12

    run(scenario())
