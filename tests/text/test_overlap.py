"""Text to the right of the cursor is not written twice, however long that line is."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codespec.text.ending import _CLOSING_SIGNS, RestOfLine, _stems
from tests.text.growth import lines_run

PARTS = st.lists(st.sampled_from([b"a", b"ab", b" ", b", ", b"x)", b")", b";", b"0,0,", b'"', b"tax"]), max_size=8)
TEXTS = PARTS.map(b"".join)


def followed(text: bytes, right: bytes) -> RestOfLine:
    """Follow a completion before the rest of a line, byte by byte."""
    rest = RestOfLine(right)
    for byte in text:
        rest.advance(bytes([byte]))
    return rest


def left(text: bytes, right: bytes) -> bytes:
    """Return what is left of a finished completion."""
    return text[: followed(text, right).left[len(text)]]


def plain_left(text: bytes, right: bytes) -> bytes:
    """Compute the same by trying every length."""
    spaced = right[:1].isspace()
    while size := plain_overlap(text, right):
        text = text[: len(text) - size].rstrip(b" \t" if spaced else b"\0")
    return text.rstrip(b" \t") if spaced else text


def plain_overlap(text: bytes, right: bytes) -> int:
    """Return the longest beginning of the rest of the line that ends the text and splits no word."""
    for stem in _stems(right):
        for size in range(len(stem), 0, -1):
            before = text[len(text) - size - 1 : len(text) - size] if len(text) > size else b""
            split = stem[size - 1 : size].isalnum() and stem[size : size + 1].isalnum()
            inside = before.isalnum() and stem[:1].isalnum()
            shows = size == len(stem) or stem[:size].strip(_CLOSING_SIGNS)
            if text.endswith(stem[:size]) and shows and not split and not inside:
                return size
    return 0


@given(TEXTS, TEXTS)
@example(b"0,0,0,0,", b"0,0,0,")
@example(b"ab ab ab", b"ab ab)")
def test_every_length_is_tried(text: bytes, right: bytes) -> None:
    assert left(text, right) == plain_left(text, right)


@given(TEXTS, TEXTS, TEXTS)
def test_nothing_certain_is_taken_back(text: bytes, more: bytes, right: bytes) -> None:
    assert followed(text, right).least[len(text)] <= len(left(text + more, right))


@pytest.mark.parametrize(
    ("text", "right", "kept"),
    [
        (b"price + tax", b" + tax", b"price"),
        (b"price + tax;", b" + tax;", b"price"),
        (b"a, b", b", b)", b"a"),
        (b"1;", b";", b"1"),
        (b"max", b"x)", b"max"),
        (b"call(a)", b")", b"call(a)"),
        (b"price", b"", b"price"),
        (b"price +", b" + tax", b"price"),
        (b"first,", b", second)", b"first"),
        (b"readFile ", b' } from "fs";', b"readFile"),
        (b"HOME}/bin", b'}/bin"', b"HOME"),
        (b"!queue.isEmpty()", b") {", b"!queue.isEmpty()"),
        (b"Vec<String>", b"> = Vec::new();", b"Vec<String>"),
        (b"x ta", b"tax * 2", b"x ta"),
        (b"count", b"", b"count"),
    ],
)
def test_the_rest_of_the_line_is_not_written_twice(text: bytes, right: bytes, kept: bytes) -> None:
    assert left(text, right) == left(kept, right) == kept


@pytest.mark.parametrize("unit", [b"a", b"a ", b"0, ", b"f(x) + ", b")", b" "])
def test_the_work_grows_with_the_line(unit: bytes) -> None:
    """Twice the line and twice the text take about twice the steps."""

    def work(size: int) -> int:
        text = unit * size
        return lines_run(lambda: followed(text, text).least[size])

    assert work(200) < 2.5 * work(100)
