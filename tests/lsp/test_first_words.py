"""A client that extends what it shows is answered with the first words that stay, other requests with the whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lsp.conversation import replacement, run
from tests.lsp.fake_daemon import talking

SHOWS_MORE = {"capabilities": {"textDocument": {"inlineCompletion": {}}, "experimental": {"codespec": {"more": True}}}}


def test_a_client_that_extends_what_it_shows_is_answered_with_the_first_words() -> None:
    """At eight keys a second no completion ends before the next key, so a whole one would never be shown."""

    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            client.open("x = \n")
            _, reply = client.ask(0, 4)
            asked = await fake.question()
            asked.say("first_na")
            await client.status()
            assert not reply.done(), "half a word could still change"
            asked.say("me(a, b")
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = first_name(a, "]
            asked.say("c)\n    rest of it")
            asked.end()
            await client.hear("codespec/more")
            await client.grows_to(0, 4, "x = first_name(a, bc)\n    rest of it")
            assert len(fake.asked) == 1

    run(scenario())


def test_a_key_that_goes_on_with_the_first_words_is_answered_at_once() -> None:
    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            client.open("x = \n")
            _, reply = client.ask(0, 4)
            asked = await fake.question()
            asked.say("abc def ")
            await reply
            for count, character in enumerate("abc", 1):
                client.type(count + 1, 0, 3 + count, character)
                assert await client.texts(0, 4 + count) == ["x = abc def "]
            asked.say("ghi")
            asked.end()
            await client.grows_to(0, 7, "x = abc def ghi")
            assert len(fake.asked) == 1 and not asked.gone.is_set()

    run(scenario())


@pytest.mark.parametrize("kind", ["plain client", "more is off", "menu", "invoked"])
def test_other_requests_are_answered_with_the_whole_text(kind: str) -> None:
    """Nobody would extend the first words, or the user asked for all there is."""

    async def scenario() -> None:
        start = None if kind == "plain client" else SHOWS_MORE
        async with talking(start=start, more=kind != "more is off", alternatives=1) as (client, fake):
            client.open("x = \n")
            context: dict[str, Any] = {"whole": True} if kind == "menu" else {}
            _, reply = client.ask(0, 4, trigger=1 if kind == "invoked" else 2, **context)
            asked = await fake.question()
            asked.say("first(a, ")
            for _ in range(3):
                await client.status()
            assert not reply.done()
            asked.say("b)")
            asked.end()
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = first(a, b)"]

    run(scenario())


async def typed_ahead(client: Any, fake: Any, typed: str) -> tuple[Any, Any]:
    """Type before the daemon has written anything, each key with a request that cancels the one before."""
    client.open("x = \n")
    number, reply = client.ask(0, 4)
    asked = await fake.question()
    for count, character in enumerate(typed, 1):
        client.cancel(number)
        client.type(count + 1, 0, 3 + count, character)
        number, reply = client.ask(0, 4 + count)
        await client.status()
    return asked, reply


def test_a_text_that_starts_with_what_was_typed_meanwhile_is_an_answer() -> None:
    """At eight keys a second the next key comes before the first word; begun anew at each, no text would ever come."""

    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            asked, reply = await typed_ahead(client, fake, "abc")
            asked.say("ab")
            await client.status()
            assert not reply.done()
            asked.say("cd(e, ")
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = abcd(e, "]
            assert len(fake.asked) == 1 and not asked.gone.is_set()

    run(scenario())


def test_a_text_that_goes_another_way_is_asked_for_again() -> None:
    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            asked, reply = await typed_ahead(client, fake, "ab")
            asked.say("a = ")
            await asked.gone.wait()
            again = await fake.question(2)
            assert again.body["prefix"].endswith("x = ab")
            again.say("out(y, ")
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = about(y, "]

    run(scenario())


def test_a_text_that_ends_before_what_was_typed_is_asked_for_again() -> None:
    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            asked, reply = await typed_ahead(client, fake, "ab")
            asked.say("a")
            asked.end()
            (await fake.question(2)).say("c(y, ")
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = abc(y, "]

    run(scenario())


def test_long_typing_ahead_begins_anew() -> None:
    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            asked, _ = await typed_ahead(client, fake, "abcd")
            await asked.gone.wait()
            assert (await fake.question(2)).body["prefix"].endswith("x = abcd")

    run(scenario())


def test_typing_ahead_and_deleting_keeps_the_text() -> None:
    async def scenario() -> None:
        async with talking(start=SHOWS_MORE) as (client, fake):
            asked, _ = await typed_ahead(client, fake, "ab")
            client.change(4, replacement(0, 5, 0, 6, ""))
            _, reply = client.ask(0, 5)
            asked.say("ac(d, ")
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = ac(d, "]
            assert len(fake.asked) == 1 and not asked.gone.is_set()

    run(scenario())
