"""Each text filter alone: what it cuts, what it keeps, and how much it holds back meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from codespec_grammars import Surroundings, read_surroundings
from hypothesis import given
from hypothesis import strategies as st

from codespec.text.filters import (
    Assignment,
    BlankRun,
    ByteLoop,
    Filter,
    LineLoop,
    Markers,
    MostLines,
    RepeatedLine,
    SecondDocstring,
    has_word,
    lines_below,
)
from tests.text.growth import lines_run

MARKERS = (b"<|endoftext|>", b"</s>", b"\n```")


def docstring_place() -> Surroundings:
    """Return a cursor below a docstring."""
    place = read_surroundings("python", b'def f(x):\n    """Return x."""\n    ')
    assert place is not None
    return place


FILTERS: dict[str, Callable[[], Filter]] = {
    "markers": lambda: Markers(MARKERS),
    "below": lambda: RepeatedLine(b"    ", [b"    return x"]),
    "lines": lambda: LineLoop(b"  "),
    "bytes": ByteLoop,
    "blank": BlankRun,
    "docstring": lambda: SecondDocstring(docstring_place()),
    "assignment": lambda: Assignment(b"    if x", r"^\s*if\b[^(:]*$"),
    "most": lambda: MostLines(3),
}
WORDS = st.sampled_from(
    [
        b"a",
        b"ab, ",
        b"</s",
        b">",
        b"<|endo",
        b"ftext|>",
        b"\n",
        b"\r\n",
        b"    return x",
        b" ",
        b"x = 1\n",
        b'"""',
        b'"',
        b"==",
    ]
)
TEXTS = st.builds(
    lambda parts, unit, times, rest: b"".join(parts) + unit * times + b"".join(rest),
    st.lists(WORDS, max_size=8),
    st.sampled_from([b"a, b, ", b"x\ny\n", b"one()\n", b"p\nq\nr\n", b"w\nx\ny\nz\n", b"=", b"ab"]),
    st.integers(0, 30),
    st.lists(WORDS, max_size=8),
)


def long_line(size: int) -> bytes:
    """One line of data without long repetition."""
    return b", ".join(b"%d" % (number * 7919) for number in range(size // 2))


def many_lines(size: int) -> bytes:
    """Lines that are all different."""
    return b"\n".join(b"x = %d" % (number * 7919) for number in range(size // 2))


def blank_lines(size: int) -> bytes:
    """Lines of white space."""
    return b"\n" * 4 * size


def followed(one: Filter, text: bytes, piece: int = 1 << 20, *, ended: bool = False) -> Filter:
    """Return a filter that has followed a text in pieces of this many bytes."""
    written = bytearray()
    for start in range(0, len(text), piece):
        written += text[start : start + piece]
        one.advance(written)
    if ended:
        one.finish(written)
    return one


def kept(look: Filter, text: bytes) -> bytes:
    """Return the text up to the cut, or the whole text."""
    return text[: look.cut.keep] if look.cut else text


def left(one: Filter, text: bytes) -> bytes:
    """Return the text that a filter leaves."""
    return kept(followed(one, text), text)


@pytest.mark.parametrize("name", FILTERS)
@given(text=TEXTS)
def test_a_cut_is_decided_once(name: str, text: bytes) -> None:
    """At the reported byte and not before; final text stays, and kept text stays whole."""
    look = followed(FILTERS[name](), text)
    steps = [followed(FILTERS[name](), text[:size]) for size in range(len(text) + 1)]
    if look.cut:
        assert [step.cut for step in steps] == [None] * look.cut.seen + [look.cut] * (len(text) + 1 - look.cut.seen)
        steps = steps[: look.cut.seen]
    certain = [step.certain for step in steps]
    assert certain == sorted(certain)
    assert certain[-1] <= len(kept(look, text))
    assert followed(FILTERS[name](), kept(look, text)).cut is None


@pytest.mark.parametrize("name", FILTERS)
@given(text=TEXTS, piece=st.integers(1, 5))
def test_the_pieces_move_nothing(name: str, text: bytes, piece: int) -> None:
    whole, parts = followed(FILTERS[name](), text), followed(FILTERS[name](), text, piece)
    assert (parts.cut, parts.certain) == (whole.cut, whole.certain)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("make", [long_line, many_lines, blank_lines])
def test_each_byte_is_read_once(name: str, make: Callable[[int], bytes]) -> None:
    """Twice the text takes about twice the steps."""

    def work(size: int) -> int:
        text = make(size)
        return lines_run(lambda: followed(FILTERS[name](), text, 4))

    assert work(1000) < 2.5 * work(500)


@pytest.mark.parametrize(
    "text,rest",
    [
        (b"x = 1</s>\ny", b"x = 1"),
        (b"x = 1<|endoftext|>", b"x = 1"),
        (b"x = 1\n```\nThis code", b"x = 1"),
        (b"x < s > y", b"x < s > y"),
    ],
)
def test_markers(text: bytes, rest: bytes) -> None:
    assert left(Markers(MARKERS), text) == rest


def test_the_beginning_of_a_marker_is_held_back() -> None:
    assert followed(Markers(MARKERS), b"x = 1<|endo").certain == len(b"x = 1")
    assert followed(Markers(MARKERS), b"x = 1<|endless").certain == len(b"x = 1<|endless")


@pytest.mark.parametrize(
    "text,rest",
    [
        (b"y = 1\n    return x\n", b"y = 1"),
        (b"y = 1\r\n    return x\r\n", b"y = 1"),
        (b"y = 1\n\n\n    return x\n", b"y = 1"),
        (b"return x\n", b""),
        (b"y = 1\n    return x + 1\n", b"y = 1\n    return x + 1\n"),
        (b"y = 1\n  return x\n", b"y = 1\n  return x\n"),
    ],
)
def test_the_line_below(text: bytes, rest: bytes) -> None:
    assert left(RepeatedLine(b"    ", [b"    return x"]), text) == rest


def test_the_line_below_without_a_line_end() -> None:
    text = b"y = 1\n    return x"
    look = followed(RepeatedLine(b"    ", [b"    return x"]), text)
    assert look.cut is None and look.certain == len(b"y = 1")
    assert kept(followed(RepeatedLine(b"    ", [b"    return x"]), text, ended=True), text) == b"y = 1"


@pytest.mark.parametrize("below", [b"", b"}", b"    )", b"  ];"])
def test_brackets_below_are_no_line_to_repeat(below: bytes) -> None:
    assert lines_below(b"\n" + below + b"\n") == []


def test_statements_below_are_those_of_the_block_and_around_it() -> None:
    below = (
        """
        self.left = left + self.margin
        for name in names:
            self.add(name, key=name.lower())
        # The margin is on both sides.
        self.done = True

    def widen(self, by: int) -> None:
        self.left = by - self.left
"""
        + "\n" * 9
    )
    found = [line.decode().strip() for line in lines_below(below.encode())]
    assert found == ["self.left = left + self.margin", "for name in names:", "def widen(self, by: int) -> None:"]


def test_only_forty_lines_below_are_compared() -> None:
    lines = [b"x%d = call(%d, first)" % (number, number) for number in range(60)]
    assert len(lines_below(b"\n".join([b"", *lines]))) == 40


@pytest.mark.parametrize(
    "text,rest",
    [
        (b"a()\n" * 3, b"a()"),
        (b"a()\n" * 2, b"a()\n" * 2),
        (b"x\na()\nb()\na()\nb()\na()\nb()\n", b"x\na()\nb()"),
        (b"a()\nb()\na()\nb()\n", b"a()\nb()\na()\nb()\n"),
        (b"a()\nb()\nc()\nd()\n" * 2, b"a()\nb()\nc()\nd()"),
        (b"a()\r\n" * 3, b"a()"),
        (b"a()\n\n" * 3, b"a()"),
        (b"}\n" * 6, b"}\n" * 6),
    ],
)
def test_lines_that_repeat(text: bytes, rest: bytes) -> None:
    assert left(LineLoop(), text) == rest


def test_the_first_line_is_whole_with_what_stands_before_the_cursor() -> None:
    text = b"a()\n    a()\n    a()\n"
    assert followed(LineLoop(), text).cut is None
    assert left(LineLoop(b"    "), text) == b"a()"


def test_a_line_that_may_begin_a_loop_is_held_back() -> None:
    assert followed(LineLoop(), b"first()\nsecond()\nfir").certain == len(b"first()\nsecond()")
    assert followed(LineLoop(), b"first()\nsecond()\nfix").certain == len(b"first()\nsecond()\nfix")


@pytest.mark.parametrize(
    "text,rest",
    [
        (b"[" + b"0, " * 40, b"[0, 0, "),
        (b"self." * 20, b"self." * 2),
        (b"# " + b"=" * 100, b"# " + b"=" * 100),
        (b"[0, 0, 0, 0, 0, 0]", b"[0, 0, 0, 0, 0, 0]"),
        (b"        " * 8 + b"x", b"        " * 8 + b"x"),
    ],
)
def test_bytes_that_repeat(text: bytes, rest: bytes) -> None:
    assert left(ByteLoop(), text) == rest


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (b" " * 200, b""),
        (b"x = 1\n" + b" " * 200, b"x = 1"),
        (b"x = 1" + b"\t" * 200 + b"y", b"x = 1"),
        (b"x = 1\n" + b" " * 60 + b"y", b"x = 1\n" + b" " * 60 + b"y"),
        ((b" " * 40 + b"\n") * 9 + b"y", (b" " * 40 + b"\n") * 9 + b"y"),
    ],
)
def test_white_space_that_goes_on(text: bytes, rest: bytes) -> None:
    assert left(BlankRun(), text) == rest


def test_what_is_worth_showing() -> None:
    assert all(has_word(text) for text in (b"x", b"0", b"})\nfoo", "é".encode()))
    assert not any(has_word(text) for text in (b"", b"})", b" \n", b'"");', b"...", b"{\n}\n"))


def test_a_text_ends_behind_its_most_lines() -> None:
    text = b"\n  one\n\n  two\n  three\n"
    look = followed(MostLines(2), text)
    assert look.cut and text[: look.cut.keep] == b"\n  one\n\n  two" and text[: look.cut.seen].endswith(b"two\n")
    assert followed(MostLines(4), text).cut is None
