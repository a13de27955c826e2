"""Inline completions over a socket with a scripted daemon: from the request to the item."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from codespec_lsp import daemon, session
from codespec_lsp.completer import AFTER_CANCEL
from codespec_lsp.prompt import build_prompt
from codespec_lsp.server import Server

from tests.lsp import fake_daemon
from tests.lsp.conversation import URI, insertion, question, replacement, run, until
from tests.lsp.fake_daemon import talking


def test_an_item_replaces_the_line_up_to_the_cursor() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            assert client.capabilities["inlineCompletionProvider"] == {}
            assert client.capabilities["textDocumentSync"]["change"] == 2
            assert "completionProvider" not in client.capabilities
            client.open("def f(x):\n    return \n")
            fake.script = ["x +", " 1"]
            (item,) = await client.items(1, 11)
            assert item["insertText"] == "    return x + 1"
            assert item["range"] == {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 11}}
            assert item["command"]["command"] == "codespec.accept"
            body = fake.asked[0].body
            assert (body["prefix"], body["suffix"]) == ("def f(x):\n    return ", "\n")
            assert (body["language"], body["path"], body["version"]) == ("python", "a.py", 1)
            assert set(body["cursor"]) == {"context", "open_brackets", "indent"} and body["prefix_offset"] == 0

    run(scenario())


def test_nothing_is_an_empty_list() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.script = []
            assert (await client.ask(0, 4)[1])["result"] == {"items": []}
            assert (await client.ask(0, 4)[1])["result"] == {"items": []}
            assert (await client.ask(0, 4, uri="file:///other.py")[1])["result"] == {"items": []}
            assert len(fake.asked) == 1, "that there is nothing is remembered"

    run(scenario())


def test_typing_along_costs_no_work() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \ny = 2\n")
            fake.script = ["foo(1,\n    2)"]
            whole = await client.texts(0, 4)
            for count, character in enumerate("foo(1,", 1):
                client.type(count + 1, 0, 3 + count, character)
                assert await client.texts(0, 4 + count) == whole
            client.change(8, replacement(0, 9, 0, 10, ""))
            assert await client.texts(0, 9) == whole, "taking back what was typed along"
            client.type(9, 0, 9, ",\n ")
            assert await client.texts(1, 1) == ["    2)"]
            assert len(fake.asked) == 1
            assert (await client.status())["counters"]["fromMemory"] == 8
            client.type(10, 1, 1, "3")
            await client.texts(1, 2)
            assert len(fake.asked) == 2, "another character is another question"

    run(scenario())


def test_a_text_cut_by_the_clock_grows() -> None:
    """The answer is the text so far, cut at a safe position; later the client is notified of more."""

    async def scenario() -> None:
        async with talking(budget_ms=30) as (client, fake):
            client.open("x = \n")
            assert await client.texts(0, 4) == []
            asked = await fake.question()
            asked.say("first_na")
            asked.say("me(a, b")
            await client.grows_to(0, 4, "x = first_name(a, ")
            asked.say("c)\n    rest")
            await client.grows_to(0, 4, "x = first_name(a, bc)")
            asked.say(" of it")
            asked.end()
            await client.grows_to(0, 4, "x = first_name(a, bc)\n    rest of it")
            assert all(params == {"uri": URI, "version": 1} for params in client.heard("codespec/more"))
            assert len(fake.asked) == 1
            assert (await client.status())["counters"]["cutByTheClock"] >= 1

    run(scenario())


def test_no_more_is_told_for_a_text_that_was_left() -> None:
    async def scenario() -> None:
        async with talking(budget_ms=30) as (client, fake):
            client.open("x = \n")
            await client.texts(0, 4)
            asked = await fake.question()
            client.type(2, 0, 0, "y")
            await asked.gone.wait()
            fake.script = []
            await client.texts(0, 5)
            assert client.heard("codespec/more") == []

    run(scenario())


def test_cancelling_reaches_the_daemon() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            number, reply = client.ask(0, 4)
            asked = await fake.question()
            client.cancel(number)
            assert (await reply)["error"]["code"] == -32800
            await asked.gone.wait()
            assert (await client.status())["counters"]["cancelled"] == 1

    run(scenario())


def test_typing_along_keeps_what_is_being_written_though_the_client_cancels() -> None:
    """VS Code cancels a request at each key, just before the edit."""

    async def scenario() -> None:
        async with talking(budget_ms=30) as (client, fake):
            client.open("x = \n")
            client.ask(0, 4)
            asked = await fake.question()
            asked.say("abc def ")
            await client.grows_to(0, 4, "x = abc def ")
            number, _ = client.ask(0, 4)
            client.cancel(number)
            client.type(2, 0, 4, "a")
            assert await client.texts(0, 5) == ["x = abc def "]
            asked.say("ghi")
            asked.end()
            await client.grows_to(0, 5, "x = abc def ghi")
            assert len(fake.asked) == 1 and not asked.gone.is_set()

    run(scenario())


def test_what_was_stopped_is_gone_on_with() -> None:
    """The new text continues the old one, of which nothing is taken back."""

    async def scenario() -> None:
        async with talking(budget_ms=30) as (client, fake):
            client.open("x = \n")
            client.ask(0, 4)
            asked = await fake.question()
            asked.say("abc def ")
            await client.grows_to(0, 4, "x = abc def ")
            client.type(2, 0, 4, "abc")
            await asked.gone.wait()
            assert await client.texts(0, 7) == ["x = abc def "]
            again = await fake.question(2)
            assert again.body["prefix"] == "x = abc def "
            again.say("ghi")
            again.end()
            await client.grows_to(0, 7, "x = abc def ghi")

    run(scenario())


def test_a_newer_question_ends_the_older() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            _, first = client.ask(0, 4)
            await fake.question()
            client.type(2, 0, 4, "abcd")
            _, second = client.ask(0, 8)
            assert (await first)["error"]["code"] == -32801
            assert (await client.status())["counters"]["superseded"] == 1
            await fake.asked[0].gone.wait()
            asked = await fake.question(2)
            asked.say("b")
            asked.end()
            assert [item["insertText"] for item in (await second)["result"]["items"]] == ["x = abcdb"]
            assert asked.body["document"] == fake.asked[0].body["document"]

    run(scenario())


def test_two_questions_at_one_place_are_one_piece_of_work() -> None:
    """Neovim sends two requests for some keys, and for its ghost text and a menu. Both are answered."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            _, first = client.ask(0, 4)
            asked = await fake.question()
            _, second = client.ask(0, 4)
            await client.status()
            asked.say("b")
            asked.end()
            for reply in (first, second):
                assert (await reply)["result"]["items"][0]["insertText"] == "x = b"
            assert len(fake.asked) == 1

    run(scenario())


def test_what_grew_while_another_question_waited_is_told() -> None:
    """The first request was answered at its deadline; while the second waits, no notification of more is sent."""

    async def scenario() -> None:
        async with talking(budget_ms=600) as (client, fake):
            client.open("x = \n")
            _, first = client.ask(0, 4)
            asked = await fake.question()
            asked.say("foo(")
            await asyncio.sleep(0.35)
            _, second = client.ask(0, 4)
            assert (await first)["result"]["items"][0]["insertText"] == "x = foo("
            asked.say("bar)")
            asked.end()
            assert (await second)["result"]["items"][0]["insertText"] == "x = foo(bar)"
            await client.hear("codespec/more", 1)

    run(scenario())


def test_one_of_two_questions_at_one_place_is_taken_back() -> None:
    """The other one is still answered, and its work continues."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            _, first = client.ask(0, 4)
            asked = await fake.question()
            number, second = client.ask(0, 4)
            await client.status()
            client.notify("$/cancelRequest", {"id": number})
            assert (await second)["error"]["code"] == -32800
            await asyncio.sleep(2 * AFTER_CANCEL)
            assert not asked.gone.is_set()
            asked.say("b")
            asked.end()
            assert (await first)["result"]["items"][0]["insertText"] == "x = b"

    run(scenario())


def test_a_question_is_about_the_text_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit, a request and another edit in one packet: no answer refers to outdated text."""

    servers: list[Server] = []
    monkeypatch.setattr(
        fake_daemon, "Server", lambda *given, **named: servers.append(Server(*given, **named)) or servers[-1]
    )

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.script = ["b"]

            def frame(message: dict[str, Any]) -> bytes:
                body = json.dumps({"jsonrpc": "2.0", **message}).encode()
                return f"Content-Length: {len(body)}\r\n\r\n".encode() + body

            def change(version: int, text: str) -> bytes:
                identifier = {"uri": URI, "version": version}
                params = {"textDocument": identifier, "contentChanges": [insertion(0, 4, text)]}
                return frame({"method": "textDocument/didChange", "params": params})

            ask = frame({"id": "q", "method": "textDocument/inlineCompletion", "params": question(0, 5)})
            client.send_raw(change(2, "a") + ask + change(3, "z"))
            await until(lambda: bool(client.stray))
            assert client.stray[0]["id"] == "q" and client.stray[0]["error"]["code"] == -32801
            assert await client.texts(0, 6) == ["x = zab"]
            protocol = servers[0].protocol
            assert "q" not in {**protocol._request_futures, **protocol._open}, "nothing is kept of what was answered"
            assert [asked.body["prefix"] for asked in fake.asked] == ["x = za"]

    run(scenario())


def test_a_selected_entry_is_gone_on_with() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("xs.ap\n")
            fake.script = ["(1)"]
            info = {"range": replacement(0, 3, 0, 5, "")["range"], "text": "append"}
            (item,) = await client.items(0, 5, selectedCompletionInfo=info)
            assert (item["insertText"], item["range"]) == ("append(1)", info["range"])
            assert (fake.asked[0].body["prefix"], fake.asked[0].body["suffix"]) == ("xs.append", "\n")
            client.change(2, replacement(0, 3, 0, 5, "append"))
            assert await client.texts(0, 9) == ["xs.append(1)"]
            assert len(fake.asked) == 1, "the entry was taken: what comes behind it is known"

    run(scenario())


def test_who_asks_gets_alternatives() -> None:
    async def scenario() -> None:
        async with talking(alternatives=3) as (client, fake):
            client.open("x = \n")
            _, reply = client.ask(0, 4, trigger=1)
            both = [await fake.question(1), await fake.question(2)]  # on separate connections, in any order
            best, others = sorted(both, key=lambda question: "n" in question.body)
            assert (others.body["n"], others.body["temperature"] > 0, "n" in best.body) == (2, True, False)
            assert others.body["document"] != best.body["document"], "or the one would end the other"
            for asked, choice, text in ((others, 1, "b"), (others, 0, "c"), (best, 0, "b")):
                asked.say(text, choice)
                asked.end(choice=choice)
            items = (await reply)["result"]["items"]
            assert [item["insertText"] for item in items] == ["x = b", "x = c"]
            assert len(await client.items(0, 4)) == 1, "an automatic question gets the best one"
            assert len(fake.asked) == 2

    run(scenario())


def test_alternatives_end_when_something_is_typed() -> None:
    """The best one continues while the typed text agrees with it; the position of the others is gone."""

    async def scenario() -> None:
        async with talking(alternatives=3) as (client, fake):
            client.open("x = \n")
            client.ask(0, 4, trigger=1)
            both = [await fake.question(1), await fake.question(2)]
            best, others = sorted(both, key=lambda question: "n" in question.body)
            best.say("foo")
            await asyncio.sleep(0.05)  # otherwise the edit would come before any text
            client.type(2, 0, 4, "f")
            await others.gone.wait()
            assert not best.gone.is_set()

    run(scenario())


def test_alternatives_end_with_their_document() -> None:
    async def scenario() -> None:
        async with talking(alternatives=3) as (client, fake):
            client.open("x = \n")
            client.ask(0, 4, trigger=1)
            both = [await fake.question(1), await fake.question(2)]
            client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
            for asked in both:
                await asked.gone.wait()

    run(scenario())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_columns_in_every_encoding(encoding: str) -> None:
    widths = {"utf-8": 4, "utf-16": 2, "utf-32": 1}

    async def scenario() -> None:
        start = {"capabilities": {"general": {"positionEncodings": [encoding]}}}
        async with talking(start=start) as (client, fake):
            assert client.capabilities["positionEncoding"] == encoding
            client.open("s = '😀' + \n")
            column = 9 + widths[encoding]
            client.type(2, 0, column, "a")
            fake.script = ["bc"]
            (item,) = await client.items(0, column + 1)
            assert item["insertText"] == "' + abc", "VS Code shows nothing that replaces a pair of surrogates"
            behind = {"line": 0, "character": 5 + widths[encoding]}
            assert item["range"] == {"start": behind, "end": {"line": 0, "character": column + 1}}
            assert fake.asked[0].body["prefix"] == "s = '😀' + a"

    run(scenario())


def test_the_answer_to_a_key_typed_along_reads_the_document_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[Any]()
    monkeypatch.setattr(
        session, "build_prompt", lambda *each, **more: built.append(each) or build_prompt(*each, **more)
    )
    monkeypatch.setattr(daemon, "IDLE_DELAY_S", 60.0)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1 + 2"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1 + 2"]
            built.clear()
            client.type(2, 0, 4, "1 ")
            assert await client.texts(0, 6) == ["x = 1 + 2"] and not built
            client.type(3, 0, 6, "- ")
            assert await client.texts(0, 8) == ["x = 1 - 1 + 2"] and built

    run(scenario())
