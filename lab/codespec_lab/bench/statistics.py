"""Statistics of the benchmarks: percentiles, intervals of shares, bootstrap intervals of ratios, common prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

RESAMPLES = 1000
SEED = 0
Z95 = 1.959964  # standard deviations on each side of a 95 % interval
PERCENTILES = (50, 95, 99)

Sample = TypeVar("Sample")
Interval = dict[str, float]  # `ratio`, and from `low` to `high` its 95 % bootstrap interval (percentiles)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 by the nearest-rank method, or {} without values."""
    ordered = sorted(values)
    ranks = {percent: max(0, -(-percent * len(ordered) // 100) - 1) for percent in PERCENTILES}
    return {f"p{percent}": ordered[rank] for percent, rank in ranks.items()} if ordered else {}


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, `right` of `count` independent trials; (0, 1) without trials."""
    if not count:
        return 0.0, 1.0
    share, spread = right / count, Z95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if right == 0 else low), (1.0 if right == count else high)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], middle: Callable[[Sequence[float]], float] = sum
) -> Interval | None:
    """Return the sum (or median) of `above` over that of `below`, paired by prompt; None if that of `below` is 0."""

    def ratio(drawn: Sequence[tuple[float, float]]) -> float | None:
        under = middle([low for _, low in drawn])
        return middle([high for high, _ in drawn]) / under if under > 0.0 else None

    pairs = list(zip(above, below, strict=True))
    found = ratio(pairs) if pairs else None
    return None if found is None else interval(found, bootstrap(pairs, ratio))


def interval(ratio: float, bounds: tuple[float, float]) -> Interval:
    """Return a ratio with its bounds."""
    return {"ratio": ratio, "low": bounds[0], "high": bounds[1]}


def bootstrap(samples: Sequence[Sample], statistic: Callable[[Sequence[Sample]], float | None]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic; resamples for which it is None are left out."""
    dice = random.Random(SEED)
    drawn = (statistic(dice.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    ordered = sorted(value for value in drawn if value is not None)
    low, high = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.025, 0.975))
    return low, high


def common(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
