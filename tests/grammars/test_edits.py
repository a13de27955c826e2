"""A tracker that followed a text equals a fresh one, never raises, and its memory does not grow."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from codespec_grammars import ContextTracker
from hypothesis import given
from hypothesis import strategies as st

from tests.grammars.edits import PIECES, random_edits
from tests.grammars.sources import CORE, source_of


def check(language: str, count: int, seed: int) -> None:
    for edited in random_edits(language, source_of(language), count, seed):
        followed, fresh = edited.tracker.context(), edited.fresh(language).context()
        assert followed == fresh, (language, len(edited.prefix), edited.data, bool(edited.suffix))


@pytest.mark.parametrize("language", CORE)
def test_a_followed_text_equals_a_fresh_one(language: str) -> None:
    check(language, 100, seed=0)


def test_asking_seldom_gives_the_same_as_asking_always() -> None:
    for edited in random_edits("python", source_of("python"), 60, seed=2):
        if len(edited.data) % 5 == 0:
            assert edited.tracker.context() == edited.fresh("python").context()


PIECE = st.one_of(st.sampled_from(PIECES), st.binary(max_size=6), st.text(max_size=6).map(str.encode))


@given(language=st.sampled_from(CORE), start=st.integers(0, 3000), pieces=st.lists(PIECE, max_size=12))
def test_any_pieces(language: str, start: int, pieces: list[bytes]) -> None:
    prefix, data = source_of(language)[:start], b""
    tracker = ContextTracker(language, prefix)
    for piece in pieces:
        data += piece
        tracker.advance(piece)
        tracker.context()
    assert tracker.context() == ContextTracker(language, prefix + data).context()


def churn(tracker: ContextTracker, rounds: int) -> None:
    for number in range(rounds):
        tracker.advance(b"value_%d = call(a, [1,\n    2])\n" % number)
        tracker.context()


def kept(tracker: ContextTracker, rounds: int) -> int:
    """Return the bytes left behind by this many rounds of writing."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    churn(tracker, rounds)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_memory_stays_flat() -> None:
    tracker = ContextTracker("python", source_of("python"))
    churn(tracker, 30)
    tracemalloc.start()
    try:
        few, many = kept(tracker, 30), kept(tracker, 300)
    finally:
        tracemalloc.stop()
    assert many < few + 16_000  # one leaked answer per round would be more than 30,000
