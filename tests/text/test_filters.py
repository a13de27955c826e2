"""Each text filter by itself: what it cuts, what it leaves alone, and how much it holds back meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.text.filters import (
    Look,
    before_overlap,
    byte_loop,
    end_markers,
    is_worthwhile,
    line_loop,
    most_lines,
    repeated_line,
    without_overlap,
)
from codespec.text.streaming import StopFinder

MARKERS = StopFinder((b"<|endoftext|>", b"</s>", b"\n```"))
FILTERS: dict[str, Callable[[bytes], Look]] = {
    "markers": lambda text: end_markers(text, MARKERS),
    "below": lambda text: repeated_line(text, b"    ", b"    return x"),
    "lines": lambda text: line_loop(text, b"  "),
    "bytes": byte_loop,
    "most": lambda text: most_lines(text, 3),
}
WORDS = st.sampled_from(
    [b"a", b"ab, ", b"</s", b">", b"<|endo", b"ftext|>", b"\n", b"\r\n", b"    return x", b" ", b"x = 1\n"]
)
TEXTS = st.builds(
    lambda parts, unit, times, rest: b"".join(parts) + unit * times + b"".join(rest),
    st.lists(WORDS, max_size=8),
    st.sampled_from([b"a, b, ", b"x\ny\n", b"one()\n", b"p\nq\nr\n", b"w\nx\ny\nz\n", b"=", b"ab"]),
    st.integers(0, 30),
    st.lists(WORDS, max_size=8),
)


def kept(look: Look, text: bytes) -> bytes:
    """The text up to the cut, whole where there is none."""
    return text[: look.cut.keep] if look.cut else text


@pytest.mark.parametrize("name", FILTERS)
@given(text=TEXTS)
@settings(max_examples=80)
def test_a_cut_is_decided_once(name: str, text: bytes) -> None:
    """At the byte it names and not before; what was certain stays; what is kept stays whole."""
    look = FILTERS[name](text)
    steps = [FILTERS[name](text[:size]) for size in range(len(text) + 1)]
    if look.cut:
        assert [step.cut for step in steps] == [None] * look.cut.seen + [look.cut] * (len(text) + 1 - look.cut.seen)
        steps = steps[: look.cut.seen]
    certain = [step.certain for step in steps]
    assert certain == sorted(certain)
    assert certain[-1] <= len(kept(look, text))
    assert FILTERS[name](kept(look, text)).cut is None


@pytest.mark.parametrize(
    "text,left",
    [
        (b"x = 1</s>\ny", b"x = 1"),
        (b"x = 1<|endoftext|>", b"x = 1"),
        (b"x = 1\n```\nThis code", b"x = 1"),
        (b"x < s > y", b"x < s > y"),
    ],
)
def test_markers(text: bytes, left: bytes) -> None:
    assert kept(end_markers(text, MARKERS), text) == left


def test_the_beginning_of_a_marker_is_held_back() -> None:
    assert end_markers(b"x = 1<|endo", MARKERS).certain == len(b"x = 1")
    assert end_markers(b"x = 1<|endless", MARKERS).certain == len(b"x = 1<|endless")


@pytest.mark.parametrize(
    "text,left",
    [
        (b"y = 1\n    return x\n", b"y = 1"),
        (b"y = 1\r\n    return x\r\n", b"y = 1"),
        (b"y = 1\n\n\n    return x\n", b"y = 1"),
        (b"return x\n", b""),
        (b"y = 1\n    return x + 1\n", b"y = 1\n    return x + 1\n"),
        (b"y = 1\n  return x\n", b"y = 1\n  return x\n"),
    ],
)
def test_the_line_below(text: bytes, left: bytes) -> None:
    assert kept(repeated_line(text, b"    ", b"    return x"), text) == left


def test_the_line_below_without_a_line_end() -> None:
    text = b"y = 1\n    return x"
    look = repeated_line(text, b"    ", b"    return x")
    assert look.cut is None and look.certain == len(b"y = 1")
    assert kept(repeated_line(text, b"    ", b"    return x", ended=True), text) == b"y = 1"


@pytest.mark.parametrize("below", [b"", b"}", b"    )", b"  ];"])
def test_brackets_below_are_no_line_to_repeat(below: bytes) -> None:
    assert repeated_line(b"x\n" + below + b"\n", b"", below).cut is None


@pytest.mark.parametrize(
    "text,left",
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
def test_lines_that_repeat(text: bytes, left: bytes) -> None:
    assert kept(line_loop(text), text) == left


def test_the_first_line_is_whole_with_what_stands_before_the_cursor() -> None:
    text = b"a()\n    a()\n    a()\n"
    assert line_loop(text).cut is None
    assert kept(line_loop(text, b"    "), text) == b"a()"


def test_a_line_that_may_begin_a_loop_is_held_back() -> None:
    assert line_loop(b"first()\nsecond()\nfir").certain == len(b"first()\nsecond()")
    assert line_loop(b"first()\nsecond()\nfix").certain == len(b"first()\nsecond()\nfix")


@pytest.mark.parametrize(
    "text,left",
    [
        (b"[" + b"0, " * 40, b"[0, 0, "),
        (b"self." * 20, b"self." * 2),
        (b"# " + b"=" * 100, b"# " + b"=" * 100),
        (b"[0, 0, 0, 0, 0, 0]", b"[0, 0, 0, 0, 0, 0]"),
        (b"        " * 8 + b"x", b"        " * 8 + b"x"),
    ],
)
def test_bytes_that_repeat(text: bytes, left: bytes) -> None:
    assert kept(byte_loop(text), text) == left


@given(TEXTS, st.integers(0, 200))
@settings(max_examples=60)
def test_lines_that_were_looked_at_need_no_second_look(text: bytes, start: int) -> None:
    if byte_loop(text[:start]).cut is None:
        assert byte_loop(text, start) == byte_loop(text)


@pytest.mark.parametrize(
    "text,right,left",
    [
        (b"price + tax", b" + tax", b"price"),
        (b"price + tax;", b" + tax;", b"price"),
        (b"a, b", b", b)", b"a"),
        (b"1;", b";", b"1"),
        (b"max", b"x)", b"max"),
        (b"call(a)", b")", b"call(a)"),
        (b"price", b"", b"price"),
    ],
)
def test_the_rest_of_the_line_is_not_written_twice(text: bytes, right: bytes, left: bytes) -> None:
    keep = without_overlap(text, right)
    assert text[:keep] == left
    assert without_overlap(text[:keep], right) == keep
    assert all(before_overlap(text[:size], right) <= keep for size in range(len(text) + 1))


def test_what_is_worth_showing() -> None:
    assert all(is_worthwhile(text) for text in (b"x", b"0", b"})\nfoo", "é".encode()))
    assert not any(is_worthwhile(text) for text in (b"", b"})", b" \n", b'"");', b"...", b"{\n}\n"))


@pytest.mark.parametrize(
    ("text", "right", "kept"),
    [
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
def test_how_the_rest_of_the_line_begins_is_not_written_twice(text: bytes, right: bytes, kept: bytes) -> None:
    assert text[: without_overlap(text, right)] == kept


def test_a_text_ends_behind_its_most_lines() -> None:
    text = b"\n  one\n\n  two\n  three\n"
    look = most_lines(text, 2)
    assert look.cut and text[: look.cut.keep] == b"\n  one\n\n  two" and text[: look.cut.seen].endswith(b"two\n")
    assert most_lines(text, 4).cut is None
