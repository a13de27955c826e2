"""Answers stay small, however long the line is that they repeat."""

from __future__ import annotations

import json

from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking


def test_an_answer_in_a_long_line_is_short() -> None:
    """It repeats the end of the line, from the same start at the next key."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            line = "0, " * 350_000
            client.open(line + "\n" + "word" * 200_000 + "\n")
            fake.script = ["1, 2"]
            starts = set()
            for number in range(3):
                reply = (await client.ask(0, len(line) + number)[1])["result"]
                assert len(json.dumps(reply)) < 8192
                (item,) = reply["items"]
                starts.add(item["range"]["start"]["character"])
                assert item["insertText"] == (line + "1, 2")[min(starts) :]
                client.type(number + 2, 0, len(line) + number, "1, 2"[number])
            assert len(starts) == 1
            assert len(json.dumps((await client.ask(1, 800_000)[1])["result"])) < 8192
            fake.script = ["x y" * 50_000]
            assert (await client.ask(1, 4)[1])["result"] == {"items": []}

    run(scenario())
