"""A daemon that starts, refuses, is absent, or dies in mid-stream: the client's suggestions and messages."""

from __future__ import annotations

from tests.lsp.conversation import run, until
from tests.lsp.fake_daemon import talking


def test_the_daemon_is_asked_again_while_it_starts() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            wait = {"Retry-After": "0"}
            fake.refusals = [(503, "The daemon is starting (target, 1 s so far): try again in a moment.", wait)] * 2
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]
            states = [(status["kind"], status["busy"]) for status in client.heard("didChangeStatus")]
            assert states == [("Normal", False), ("Normal", True), ("Normal", False)]

    run(scenario())


def test_what_the_daemon_refuses_is_told_once() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.refusals = [(400, "prefix must be text.", {})] * 2
            assert [await client.texts(0, 4) for _ in range(2)] == [[], []]
            shown = [message["message"] for message in client.heard("window/showMessage")]
            assert shown == ["codespec: prefix must be text."]
            assert (await client.status())["kind"] == "Error"
            fake.script = ["1"]
            assert await client.texts(0, 4) == ["x = 1"]
            assert (await client.status())["kind"] == "Normal"

    run(scenario())


def test_without_a_daemon_the_user_is_told_why() -> None:
    async def scenario() -> None:
        async with talking(url="http://127.0.0.1:1") as (client, _):
            client.open("x = \n")
            assert await client.texts(0, 4) == []
            (message,) = [message["message"] for message in client.heard("window/showMessage")]
            assert "No daemon answers at http://127.0.0.1:1: run `codespec serve" in message

    run(scenario())


def test_a_daemon_that_dies_in_the_middle() -> None:
    """The text received so far is shown; the next request continues from there."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            _, reply = client.ask(0, 4)
            asked = await fake.question()
            asked.say("foo(a, ")
            asked.hang_up()
            assert [item["insertText"] for item in (await reply)["result"]["items"]] == ["x = foo(a, "]
            fake.script = ["b)"]
            assert (await client.texts(0, 4))[0].startswith("x = foo(a, ")
            await until(lambda: len(fake.asked) == 2)
            assert fake.asked[1].body["prefix"] == "x = foo(a, "
            assert await client.texts(0, 4) == ["x = foo(a, b)"]

    run(scenario())
