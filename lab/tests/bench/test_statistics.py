"""The bootstrap finds planted differences and no others."""

from __future__ import annotations

import random

from codespec_lab.bench.statistics import ratio_interval
from hypothesis import given
from hypothesis import strategies as st

COSTS = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12)


def noisy(factor: float, count: int = 120) -> tuple[list[float], list[float]]:
    """Two policies on prompts of very different lengths; the first costs about `factor` times as much."""
    dice = random.Random(1)
    below = [dice.uniform(1, 20) for _ in range(count)]
    return [factor * cost * dice.uniform(0.9, 1.1) for cost in below], below


def test_a_planted_difference_is_found() -> None:
    for factor in (0.95, 1.05):
        found = ratio_interval(*noisy(factor))
        assert found is not None and found["low"] < factor < found["high"] and not found["low"] < 1.0 < found["high"]


def test_no_difference_is_none() -> None:
    found = ratio_interval(*noisy(1.0))
    assert found is not None and found["low"] < 1.0 < found["high"] < 1.03


def test_it_is_paired() -> None:
    """Prompts differ twentyfold, but a constant factor has no spread."""
    _, below = noisy(1.0)
    found = ratio_interval([1.5 * cost for cost in below], below)
    assert found is not None and found["high"] - found["low"] < 1e-9


def test_nothing_to_compare_with() -> None:
    assert ratio_interval([1.0], [0.0]) is None


@given(COSTS)
def test_the_ratio_lies_between_the_prompts(costs: list[tuple[float, float]]) -> None:
    above, below = zip(*costs, strict=True)
    found, again = ratio_interval(above, below), ratio_interval(above, below)
    ratios = [a / b for a, b in costs]
    assert found == again and found is not None
    assert min(ratios) * 0.999 <= found["low"] <= found["high"] <= max(ratios) * 1.001
