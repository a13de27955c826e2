"""Clients that count in UTF-16 and cut or type half of a surrogate pair: no text drifts."""

from __future__ import annotations

from codespec_lsp.buffer import Buffer, Encoding
from hypothesis import example, given
from hypothesis import strategies as st

from tests.lsp.conversation import insertion, replacement, run
from tests.lsp.fake_daemon import talking

SMILE = "\U0001f600"
TEXT = st.text(st.sampled_from(["a", "\n", "\r", "\u00e9", SMILE, "\U0001f601"]), max_size=8)
HALF = st.sampled_from(["", "x", "\ud83d", "\ude00", f"\ude00{SMILE}\ud83d", "\n", "\ude00\n\ud83d"])
EDITS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), HALF), min_size=1, max_size=4)


def units(text: str) -> list[str]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [data[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(data), 2)]


def whole(halves: list[str]) -> str:
    return "".join(halves).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def place(halves: list[str], at: int) -> tuple[int, int]:
    """Return a unit's line and character as a client of LSP counts them."""
    before = whole(halves[:at]).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return len(before) - 1, len(units(before[-1]))


@given(TEXT, EDITS)
@example(SMILE, [(1, 2, "")])
@example(SMILE, [(0, 1, ""), (0, 0, "\ud83d")])
@example(f"a{SMILE}{SMILE}", [(2, 4, "")])
def test_the_text_is_the_clients_unit_by_unit(text: str, edits: list[tuple[int, int, str]]) -> None:
    buffer, client = Buffer(text), units(text)
    for one, other, typed in edits:
        start, end = sorted(min(at, len(client)) for at in (one, other))
        if any(client[at - 1 : at + 1] == ["\r", "\n"] for at in (start, end) if at):
            continue  # no column lies between them
        before = buffer.text
        edit = buffer.change(place(client, start), place(client, end), typed)
        client[start:end] = units(typed)
        assert buffer.text == whole(client)
        assert before[: edit.start] + edit.removed + before[edit.start + len(edit.removed) :] == before
        assert before[: edit.start] + edit.text + before[edit.start + len(edit.removed) :] == buffer.text


@given(TEXT, st.sampled_from(["utf-8", "utf-32"]))
def test_other_units_have_no_halves(text: str, encoding: Encoding) -> None:
    buffer = Buffer(text, encoding)
    buffer.change((0, 0), (0, 0), "x")
    assert buffer.text == f"x{text}"


def test_halves_that_are_typed_one_by_one_reach_the_model_as_one_character() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open(f"{SMILE} = \n")
            client.change(2, replacement(0, 1, 0, 2, ""))
            assert await client.texts(0, 4)
            assert fake.asked[-1].body["prefix"] == "\ufffd = "
            client.change(3, insertion(0, 1, "\ude01"))
            assert await client.texts(0, 5)
            assert fake.asked[-1].body["prefix"] == "\U0001f601 = "

    run(scenario())
