"""Each candidate token has the confidence of the draft units that spell it, for any pair of tokenizers."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.engine.round import shared_out
from codespec.sequence import Draft

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def draft_of(sizes: list[int], probabilities: list[float]) -> Draft:
    ends = tuple(accumulate(sizes))
    return Draft(b"x" * ends[-1], "drafter", ends, tuple(probabilities))


@given(SIZES, st.lists(st.floats(0.1, 1.0), min_size=8, max_size=8), SIZES)
def test_equals_the_product_over_every_unit_that_overlaps(
    units: list[int], probabilities: list[float], sizes: list[int]
) -> None:
    draft = draft_of(units, probabilities[: len(units)])
    found = shared_out(draft, sizes)
    begin = 0
    for size, confidence in zip(sizes, found, strict=True):
        spans = zip((0, *draft.ends), draft.ends, draft.confidences, strict=False)
        overlapping = [c for first, last, c in spans if first < begin + size and last > begin]
        assert confidence == pytest.approx(math.prod(overlapping))
        begin += size


def test_the_same_cut_keeps_each_units_own() -> None:
    assert shared_out(draft_of([2, 3, 1], [0.9, 0.8, 0.7]), [2, 3, 1]) == (0.9, 0.8, 0.7)


def test_one_unit_holds_for_all_it_spells() -> None:
    assert shared_out(draft_of([9], [0.6]), [2, 3, 4]) == (0.6, 0.6, 0.6)


def test_a_token_of_several_units_is_as_sure_as_all_of_them() -> None:
    assert shared_out(draft_of([1, 1, 2], [0.5, 0.5, 0.9]), [2, 2]) == (0.25, 0.9)
    assert shared_out(draft_of([3, 1], [0.5, 0.8]), [2, 2]) == (0.5, 0.4), "it shares bytes with both"
