"""Text deleted at a position is sent with requests at that position, and only there."""

from __future__ import annotations

import random

import pytest
from codespec_lsp.buffer import MAX_PLACES, MAX_TEXT, MAX_TYPED, MIN, Deletions, Edit
from codespec_lsp.documents import path_of

from tests.lsp.conversation import URI, Editor, replacement, run
from tests.lsp.fake_daemon import talking

CODE = "def total(prices):\n    result = sum(prices)\n    return round(result, 2)\n"


class Text:
    """A text whose deletions are recorded."""

    def __init__(self, text: str = CODE) -> None:
        self.text = text
        self.deletions = Deletions()

    def replace(self, start: int, removed: int, text: str = "") -> None:
        edit = Edit(start, self.text[start : start + removed], text)
        self.text = self.text[:start] + text + self.text[start + removed :]
        self.deletions.edited(edit)

    def draft(self, offset: int) -> str:
        return self.deletions.find(offset, self.text[:offset], self.text[offset:])


def test_what_stood_there() -> None:
    made, at = Text(), CODE.index("return")
    made.replace(at, len("return round(result, 2)"))
    assert made.draft(at) == "return round(result, 2)"
    assert made.draft(at - 1) == made.draft(0) == ""
    made.replace(at, 0, "return ro")
    assert made.draft(at + 9) == "und(result, 2)", "what is typed again is left out"
    made.replace(at + 9, 0, "ughly")
    assert made.draft(at + 14) == "return round(result, 2)", "something else is typed: all of it, to find a place in"
    assert made.draft(len(made.text)) == "return round(result, 2)"


@pytest.mark.parametrize("forward", [False, True])
def test_bit_by_bit(forward: bool) -> None:
    """Backspace removes the last character first, delete the first."""
    made, at, word = Text(), CODE.index("round"), "round(result, 2)"
    for n in range(len(word)):
        made.replace(at if forward else at + len(word) - 1 - n, 1)
    assert made.draft(at) == word


def test_a_place_moves_with_the_text_above() -> None:
    made, at = Text(), CODE.index("return")
    made.replace(at, 10)
    made.replace(0, 0, "import math\n")
    assert made.draft(at) == "" and made.draft(at + 12) == "return rou"
    made.replace(0, 4)
    assert made.draft(at + 8) == "return rou"
    made.replace(at, 30)
    assert "return rou" not in made.draft(at), "it was deleted with what is around it"


def test_what_stands_there_again_is_no_guess() -> None:
    made, at = Text(), CODE.index("return")
    made.replace(at, 10)
    made.replace(at, 0, "return rou")
    assert made.draft(at) == made.draft(at + 10) == ""


def test_a_selection_that_is_typed_over() -> None:
    made, at = Text(), CODE.index("sum(prices)")
    made.replace(at, len("sum(prices)"), "s")
    assert made.draft(at + 1) == "um(prices)"
    made.replace(at, 1, "max")
    assert made.draft(at + 3) == "um(prices)", "least() takes what both share for kept"


def test_too_little_or_too_far_is_no_guess() -> None:
    made = Text("x" * 500 + "abc defg")
    made.replace(503, 5)
    assert made.draft(503) == " defg", f"{MIN} characters"
    made = Text("x" * 500 + "abc def")
    made.replace(503, 4)
    assert made.draft(503) == "", "three characters"
    made.replace(400, 100)
    assert made.draft(400) == "x" * 100
    made.replace(400, 0, "y" * (MAX_TYPED + 1))
    assert made.draft(400 + MAX_TYPED) == "x" * 100 and made.draft(401 + MAX_TYPED) == ""


def test_it_is_bounded() -> None:
    dice, made = random.Random(5), Text("some words\n" * 20_000)
    made.replace(0, 100_000)
    assert len(made.draft(0)) == MAX_TEXT
    for n in range(500):
        made.replace(dice.randrange(len(made.text) - 50), dice.randrange(40), dice.choice(["", "x", "new line\n"]))
        assert len(made.deletions._places) <= MAX_PLACES
        assert all(0 <= place.start <= len(made.text) for place in made.deletions._places), n
        assert all(len(place.text) <= MAX_TEXT for place in made.deletions._places)


async def deleted(client: Editor, uri: str = URI) -> None:
    """Return a document whose last line's statement was deleted; the cursor is at (2, 4)."""
    client.open(CODE, uri=uri)
    client.change(2, replacement(2, 4, 2, 27, ""), uri=uri)


def test_a_request_there_brings_it_along() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["x"]
            await deleted(client)
            await client.texts(2, 4)
            assert fake.asked[0].body["draft"] == "return round(result, 2)"
            client.type(3, 2, 4, "ret")
            await client.texts(2, 7)
            assert fake.asked[1].body["draft"] == "urn round(result, 2)"
            client.type(4, 0, 0, "# a comment\n")
            await client.texts(1, 5)
            assert "draft" not in fake.asked[2].body, "nothing stood there"
            assert all("draft" not in warm.body for warm in fake.warmed)

    run(scenario())


def test_it_is_gone_with_its_document() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["x"]
            await deleted(client)
            client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
            client.open(CODE.replace("return round(result, 2)", ""))
            await client.texts(2, 4)
            assert "draft" not in fake.asked[0].body

    run(scenario())


def test_a_file_that_may_hold_secrets_brings_none() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["x"]
            await deleted(client, uri="file:///p/.env")
            assert await client.texts(2, 4, uri="file:///p/.env") == []
            await deleted(client)
            await client.texts(2, 4)
            assert [asked.body["path"] for asked in fake.asked] == [path_of(URI).lstrip("/")]

    run(scenario())
