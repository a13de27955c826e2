"""The document buffer, compared with a plain string and independent lines and columns; deleted text as a draft."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest
from codespec_lsp.buffer import (
    MAX_PLACES,
    MAX_TEXT,
    MAX_TYPED,
    MIN,
    Buffer,
    Deletions,
    Edit,
    Encoding,
    TextPosition,
    split_lines,
    width,
)
from codespec_lsp.documents import path_of
from hypothesis import given
from hypothesis import strategies as st

from tests.lsp.conversation import URI, Editor, replacement, run
from tests.lsp.fake_daemon import talking

PIECES = ["", "a", "bc ", "\n", "\r\n", "\r", "é", "😀", "\ud800", "\x0c", "\u2028", "x\ny", "\n\n", "\r\r\n", "日本"]
ENCODINGS: list[Encoding] = ["utf-8", "utf-16", "utf-32"]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


class Plain:
    """A client's text as one string, with positions as the protocol defines them, or as Vim counts lines."""

    def __init__(self, text: str, encoding: Encoding, vim: bool = False) -> None:
        self.text, self.encoding = text, encoding
        self.ends = r"\n" if vim else r"\r\n|\r|\n"

    def size(self, text: str) -> int:
        if self.encoding == "utf-32":
            return len(text)
        return len(text.encode(self.encoding + ("-le" if self.encoding == "utf-16" else ""), "surrogatepass")) // (
            2 if self.encoding == "utf-16" else 1
        )

    def starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer(self.ends, self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        r"""Return the position of an offset, which must not be between \r and \n."""
        line = max(index for index, start in enumerate(self.starts()) if start <= offset)
        return line, self.size(self.text[self.starts()[line] : offset])

    def offsets(self) -> list[int]:
        """Return the offsets that a client can address."""
        ends = "" if self.ends == r"\n" else "\r\n"
        return [at for at in range(len(self.text) + 1) if not ends or self.text[max(0, at - 1) : at + 1] != ends]


def edit(plain: Plain, buffer: Buffer, start: int, end: int, text: str) -> None:
    """Apply the same edit to both."""
    places = [buffer.position(*plain.position(offset)) for offset in (start, end)]
    assert [buffer.offset(place) for place in places] == [start, end]
    before = plain.text
    plain.text = before[:start] + text + before[end:]
    told = buffer.replace(places[0], places[1], text)
    assert (told.start, told.removed, told.text) == (start, before[start:end], text)


@given(text=texts, encoding=st.sampled_from(ENCODINGS), vim=st.booleans(), data=st.data())
def test_the_text_is_the_clients(text: str, encoding: Encoding, vim: bool, data: st.DataObject) -> None:
    text += "\n" if vim else ""  # without one, a \r ends Vim's lines
    plain, buffer = Plain(text, encoding, vim), Buffer(text, encoding, vim)
    for _ in range(data.draw(st.integers(0, 8))):
        ends = sorted(data.draw(st.sampled_from(plain.offsets())) for _ in range(2))
        edit(plain, buffer, *ends, data.draw(texts))
        assert buffer.text == plain.text
        assert buffer.lines == split_lines(plain.text, vim)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_many_edits_in_a_row(count: int) -> None:
    """As required by the issue: with surrogate pairs, both kinds of line ends, and several changes at once."""
    source = random.Random(6)
    for encoding in ENCODINGS:
        plain, buffer = Plain("def f():\r\n    return '😀'\n" * 4, encoding), Buffer("", encoding)
        buffer.replace_all(plain.text)
        for _ in range(count // len(ENCODINGS) + 1):
            offsets = plain.offsets()
            start = source.choice(offsets)
            end = source.choice([at for at in offsets if start <= at <= start + 9])
            text = "".join(source.choices(PIECES, k=source.randrange(3))) if len(plain.text) < 400 else ""
            edit(plain, buffer, start, end, text)
            assert buffer.text == plain.text


@given(text=texts, encoding=st.sampled_from(ENCODINGS))
def test_columns_there_and_back(text: str, encoding: Encoding) -> None:
    plain, buffer = Plain(text, encoding), Buffer(text, encoding)
    for offset in plain.offsets():
        line, column = plain.position(offset)
        place = buffer.position(line, column)
        assert (place.row, buffer.character(place)) == (line, column)


def test_positions_outside_the_text_are_its_ends() -> None:
    buffer = Buffer("ab\r\nc😀\n", "utf-16")
    assert buffer.position(0, 99) == TextPosition(0, 2)
    assert buffer.position(1, 2) == TextPosition(1, 1), "in the middle of a character"
    assert buffer.position(99, 99) == TextPosition(2, 0)
    backwards = buffer.replace(TextPosition(1, 1), TextPosition(0, 1), "-")
    assert (buffer.text, backwards.start) == ("a-😀\n", 1)


def test_only_the_protocols_line_ends_end_lines() -> None:
    assert split_lines("a\x0cb\x85c\u2028d\x1ce") == ["a\x0cb\x85c\u2028d\x1ce"]
    assert split_lines("a\r\r\nb\n\rc") == ["a\r", "\r\n", "b\n", "\r", "c"]


@pytest.mark.parametrize(
    ("text", "lines", "newline"),
    [
        ("a\rb\nc\r\n", ["a\rb\n", "c\r\n", ""], "\n"),
        ("a\r\nb\rc\r\n", ["a\r\n", "b\rc\r\n", ""], "\r\n"),
        ("a\rb\r", ["a\r", "b\r", ""], "\r"),
        ("", [""], "\n"),
    ],
    ids=["unix", "dos", "mac", "empty"],
)
def test_vim_has_one_line_end_in_a_file(text: str, lines: list[str], newline: str) -> None:
    buffer = Buffer(text, vim=True)
    assert (buffer.lines, buffer.newline) == (lines, newline)


@pytest.mark.parametrize(
    ("edit", "least"),
    [
        (Edit(0, "ab", "abc"), Edit(2, "", "c")),
        (Edit(3, "abc", "ac"), Edit(4, "b", "")),
        (Edit(0, "aa", "aaa"), Edit(2, "", "a")),
        (Edit(1, "x", "x"), Edit(2, "", "")),
        (Edit(0, "foo bar", "foo baz bar"), Edit(6, "", "z ba")),
    ],
)
def test_what_was_really_typed(edit: Edit, least: Edit) -> None:
    assert edit.least() == least


@given(text=st.text(alphabet="ab\n", max_size=300), column=st.integers(0, 300), most=st.sampled_from([16, 32, 64]))
def test_the_window_begins_at_a_line_and_moves_in_steps(text: str, column: int, most: int) -> None:
    buffer, offset = Buffer(text), min(column, len(text))
    rows = [0, *(found.end() for found in re.finditer("\n", text))]
    row = max(index for index, start in enumerate(rows) if start <= offset)
    place = TextPosition(row, offset - rows[row])
    window = buffer.before(place, most, most // 4)
    assert len(window) <= most and text[:offset].endswith(window)
    assert buffer.after(place, most) == text[offset : offset + most]
    start = offset - len(window)
    if offset <= most:
        assert start == 0
    else:
        assert start <= -(-(offset - most) // (most // 4)) * (most // 4) + most // 4


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
@pytest.mark.parametrize("words", ["слово ", "😀😀 "])
def test_a_long_line_is_measured_as_a_whole(words: str, encoding: Encoding) -> None:
    """Its columns cost ten times its encoding; a loop over characters would cost many hundred times that."""
    line = words * 100_000
    buffer, column = Buffer(line, encoding), width(line, encoding)

    def seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def there_and_back() -> None:
        assert buffer.character(buffer.position(0, column - 1)) == column - 1

    once = min(seconds(lambda: line.encode("utf-16-le")) for _ in range(9))
    assert min(seconds(there_and_back) for _ in range(9)) <= 60 * once


@pytest.mark.parametrize("most", [0, 1, 511, 512, 513, 1023, 5000])
def test_what_comes_after_in_a_long_document(most: int) -> None:
    text = "a\n" * 1000
    for row in (0, 1, 500, 743, 744, 999, 1000):
        assert Buffer(text).after(TextPosition(row, 0), most) == text[2 * row : 2 * row + most]


def test_typing_does_not_move_the_window() -> None:
    lines = "".join(f"line {number:5}\n" for number in range(400))
    starts = set()
    for count in range(500):
        text = lines + "x" * count
        buffer = Buffer(text)
        window = buffer.before(TextPosition(400, count), 2048, 512)
        starts.add(len(text) - len(window))
    assert len(starts) <= 2, "500 keys move it once"


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
