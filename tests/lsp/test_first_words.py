"""A client that extends what it shows is answered with the first words that stay, other requests with the whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lsp.conversation import run
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
