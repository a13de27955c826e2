"""The admitted positions are optimal, checked by brute force over every choice of lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.speculation.cost_model import best_lengths

CHANCES = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda found: list(accumulate(found, lambda a, b: a * b)))
BATCHES = st.lists(CHANCES, max_size=3)
STEPS = st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12)


def gain(survivals: Sequence[Sequence[float]], lengths: Sequence[int], seconds: Callable[[int], float]) -> float:
    tokens = sum(sum(probabilities[:length]) for probabilities, length in zip(survivals, lengths, strict=True))
    return tokens - seconds(sum(lengths))


def best(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float]) -> float:
    choices = itertools.product(*(range(len(probabilities) + 1) for probabilities in survivals))
    return max(gain(survivals, lengths, seconds) for lengths in choices)


def stairs(steps: Sequence[float]) -> Callable[[int], float]:
    """Return any nondecreasing cost."""
    sums = [0.0, *accumulate(steps)]
    return lambda rows: sums[rows]


@given(BATCHES, STEPS)
def test_equals_brute_force(survivals: list[list[float]], steps: list[float]) -> None:
    seconds = stairs(steps)
    lengths = best_lengths(survivals, seconds, 1.0)
    assert all(0 <= n <= len(probabilities) for n, probabilities in zip(lengths, survivals, strict=True))
    assert gain(survivals, lengths, seconds) == pytest.approx(best(survivals, seconds))


@given(BATCHES, STEPS, st.floats(0.1, 4.0))
def test_a_dearer_second_never_admits_more(survivals: list[list[float]], steps: list[float], factor: float) -> None:
    cheap, dear = best_lengths(survivals, stairs(steps), 1.0), best_lengths(survivals, stairs(steps), 1.0 + factor)
    assert sum(dear) <= sum(cheap)


@given(BATCHES)
def test_free_rows_are_all_admitted_and_worthless_ones_are_not(survivals: list[list[float]]) -> None:
    assert best_lengths(survivals, lambda rows: 0.0, 1.0) == [len(probabilities) for probabilities in survivals]
    assert best_lengths([[0.0] * len(probabilities) for probabilities in survivals], lambda rows: rows * 1e-9, 1.0) == [
        0
    ] * len(survivals)


def test_a_stair_is_crossed_where_what_lies_beyond_pays_for_it() -> None:
    """One more row is expensive, further ones are free: five likely tokens pay for it together, none alone."""
    stair = stairs([2.0, *[0.0] * 11])
    assert best_lengths([[0.9, 0.8, 0.7, 0.6, 0.5]], stair, 1.0) == [5]
    assert best_lengths([[0.9, 0.8]], stair, 1.0) == [0]


def test_brute_force_catches_a_rule_that_ignores_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float], price: float) -> list[int]:
        return [len(probabilities) for probabilities in survivals]

    monkeypatch.setitem(globals(), "best_lengths", careless)
    with pytest.raises(AssertionError):
        test_equals_brute_force()
