"""Stops cut where a byte-by-byte reader would cut, and text that was shown is never taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codespec.text.filters import StopFinder

letters = st.text(alphabet="ab\n\u00e9", min_size=1, max_size=4).map(str.encode)
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=40)


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    """Split the data into pieces of these sizes; the last one takes the rest."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(text=st.text(alphabet="ab\n\u00e9", max_size=40), stops=st.lists(letters, min_size=1, max_size=3), sizes=sizes)
def test_a_stop_cuts_alike_whatever_the_rounds_brought(text: str, stops: list[bytes], sizes: list[int]) -> None:
    data = text.encode()
    finder = StopFinder(tuple(stops))
    assert first_cut(finder, chunks(data, sizes)) == first_cut(finder, [bytes([byte]) for byte in data])
    assert first_cut(finder, [data]) == first_cut(finder, [bytes([byte]) for byte in data])


def first_cut(finder: StopFinder, pieces: list[bytes]) -> int | None:
    """Return the cut found as the text grows by these pieces."""
    text = b""
    for piece in pieces:
        start = len(text)
        text += piece
        cut = finder.find(text, start)
        if cut is not None:
            return cut
    return None


def test_the_stop_completed_first_counts() -> None:
    assert StopFinder((b"xabc", b"ab")).find(b"-xabc") == 2
    assert StopFinder((b"b", b"aab")).find(b"-aab") == 1
    assert StopFinder().find(b"anything") is None


def test_a_stop_across_rounds_is_found_once() -> None:
    finder = StopFinder((b"\n\n",))
    assert finder.find(b"x\n", 1) is None
    assert finder.find(b"x\n\n", 2) == 1
    assert finder.find(b"\n\ny", 2) is None  # completed before, so not new


@given(text=st.text(alphabet="ab\n\u00e9", max_size=30), stops=st.lists(letters, min_size=1, max_size=3), sizes=sizes)
def test_what_was_shown_is_never_taken_back(text: str, stops: list[bytes], sizes: list[int]) -> None:
    finder = StopFinder(tuple(stops))
    data = text.encode()
    cut = first_cut(finder, [data])
    grown = b""
    for piece in chunks(data, sizes):
        start = len(grown)
        grown += piece
        end = finder.find(grown, start)
        shown = grown[: len(grown) - finder.held_back(grown) if end is None else end]
        assert data[:cut].startswith(shown)
        if end is not None:
            break


def test_held_back_is_the_longest_beginning_of_a_stop() -> None:
    finder = StopFinder((b"\n\ndef", b"```"))
    assert finder.held_back(b"x\n\nde") == 4
    assert finder.held_back(b"x``") == 2
    assert finder.held_back(b"x") == 0
    assert finder.held_back(bytearray(b"\n")) == 1
