"""Line ends as clients count them, and the line ends of inserted text."""

from __future__ import annotations

import pytest

from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking


@pytest.mark.parametrize(("client_name", "row"), [("Visual Studio Code", 2), ("Neovim", 1)])
def test_a_carriage_return_inside_a_line_is_counted_as_the_client_counts(client_name: str, row: int) -> None:
    """To Neovim it is a character: the prompt, the item and a change are on the same line as the cursor."""

    async def scenario() -> None:
        async with talking(start={"clientInfo": {"name": client_name}}) as (client, fake):
            client.open("x = 'a\rb'\ny = 1\nz = 2\n")
            fake.script = ["0"]
            (item,) = await client.items(row, 5)
            assert item["insertText"] == "y = 10"
            assert item["range"] == {"start": {"line": row, "character": 0}, "end": {"line": row, "character": 5}}
            client.type(2, row, 5, "234")
            assert await client.texts(row + 1, 5) == ["z = 20"]
            assert [each.body["prefix"] for each in fake.asked] == ["x = 'a\rb'\ny = 1", "x = 'a\rb'\ny = 1234\nz = 2"]

    run(scenario())


def test_text_before_a_carriage_return_is_not_inserted_again() -> None:
    """Neovim would insert it as a line end."""

    async def scenario() -> None:
        async with talking(start={"clientInfo": {"name": "Neovim"}}) as (client, fake):
            client.open("x = 'a\rb\n")
            fake.script = ["c'"]
            (item,) = await client.items(0, 8)
            assert (item["insertText"], item["range"]["start"]["character"]) == ("bc'", 7)

    run(scenario())


@pytest.mark.parametrize(("client_name", "newline"), [("Visual Studio Code", "\r\n"), ("Neovim", "\n")])
def test_line_ends_are_the_documents_own(client_name: str, newline: str) -> None:
    r"""A line end may be split between pieces; a client that displays \r gets none."""

    async def scenario() -> None:
        async with talking(start={"clientInfo": {"name": client_name}}) as (client, fake):
            client.open("if x:\r\n    a = 1\r\n")
            fake.script = ["b\n", "    c\r", "\n    d"]
            assert await client.texts(1, 4) == [f"    b{newline}    c{newline}    d"]
            client.type(2, 1, 4, "b\r\n  ")
            (text,) = await client.texts(2, 2)
            assert text == f"    c{newline}    d" and len(fake.asked) == 1
            assert fake.asked[0].body["prefix"] == "if x:\n    ", "the model reads no line end but this"

    run(scenario())


@pytest.mark.parametrize("rows", [1, 20_000])
def test_crlf_and_lf_are_one_text_to_the_model(rows: int) -> None:
    async def scenario() -> None:
        bodies = []
        for newline in ("\n", "\r\n"):
            async with talking() as (client, fake):
                text = "x = 1\n" * rows + "with open(path) as file:\n    \n\ny = 2\n"
                client.open(text.replace("\n", newline))
                fake.script = ["pass"]
                assert await client.texts(rows + 1, 4) == ["    pass"]
                body = fake.asked[0].body
                bodies.append({key: body[key] for key in ("prefix", "suffix", "cursor", "snippets")})
                assert (body["prefix_offset"] == 0) == (rows == 1)
                assert body["prefix_offset"] + len(body["prefix"]) == len(text[: text.index("    \n") + 4])
        if rows == 1:
            assert bodies[0] == bodies[1]
        assert all("\r" not in body["prefix"] + body["suffix"] for body in bodies)

    run(scenario())
