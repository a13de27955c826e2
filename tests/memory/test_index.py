"""The sorted index finds what a plain search finds, keeps within texts, and takes new texts at once."""

from __future__ import annotations

import random

import pytest

from codespec.memory.index import MOST_AHEAD, MOST_NEW, SORTED, TextIndex


def longest_by_search(texts: list[bytes], own: bytes) -> int:
    """The longest suffix of `own` that one of the texts has with something behind it."""
    return max(
        (length for length in range(1, len(own) + 1) if any(own[-length:] in text[:-1] for text in texts)), default=0
    )


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_longest_match(seed: int, new: bool) -> None:
    dice = random.Random(seed)
    texts = [bytes(dice.choices(b"ab\n ", k=dice.randint(1, 40))) for _ in range(6)]
    index = TextIndex([] if new else texts)
    assert all(index.add(text) for text in texts) or not new
    for _ in range(40):
        own = bytes(dice.choices(b"ab\n ", k=dice.randint(1, 12)))
        wanted = longest_by_search(texts, own)
        length, ahead = index.longest(own, 0)
        assert length == wanted
        assert not length or (any(own[-length:] + ahead in text for text in texts) and ahead)
        assert index.longest(own, wanted) == (0, b"")


def test_the_latest_of_equal_matches_goes_on() -> None:
    index = TextIndex([b"total = first", b"total = second", b"total = third"])
    assert index.longest(b"the total = ", 3) == (8, b"third")
    assert index.add(b"total = fourth")
    assert index.longest(b"the total = ", 3)[1] in (b"third", b"fourth")
    assert index.longest(b"total = ", 3)[0] == 8


def test_a_match_longer_than_what_is_sorted_is_found_among_many() -> None:
    texts = [f"{number:03}{'x' * SORTED}= {number}".encode() for number in range(400)]
    length, ahead = TextIndex(texts).longest(b"399" + b"x" * SORTED + b"= ", 0)
    assert (length, ahead) == (SORTED + 5, b"399")


def test_nothing_crosses_from_one_text_into_the_next() -> None:
    index = TextIndex([b"return alpha", b"return beta"])
    assert index.longest(b"return alpha", 0) == (1, b"lpha")
    assert index.longest(b"return ", 3) == (7, b"beta")


def test_a_text_with_zero_bytes_stays_one_text() -> None:
    assert TextIndex([b"one\0two three"]).longest(b"two ", 2) == (4, b"three")


def test_how_far_it_looks_ahead_and_how_much_it_takes_unsorted_are_bounded() -> None:
    index = TextIndex([b"begin " + b"x" * 10_000])
    assert len(index.longest(b"begin ", 0)[1]) == MOST_AHEAD
    assert index.add(b"y" * (MOST_NEW - 2)) and not index.add(b"yy")


def test_an_empty_one_finds_nothing() -> None:
    assert TextIndex([]).longest(b"text", 0) == (0, b"")
    assert TextIndex([b"text"]).longest(b"", 0) == (0, b"")
