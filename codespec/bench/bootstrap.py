"""How sure a ratio is: a paired bootstrap over prompts. Knows numbers only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

RESAMPLES = 1000
SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of sums, and the 95 % interval of it over resampled prompts (percentiles)."""

    ratio: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Plain JSON values."""
        return asdict(self)


def ratio_interval(above: Sequence[float], below: Sequence[float], *, seed: int = SEED) -> Interval | None:
    """The sum of `above` over the sum of `below`, paired by prompt; None where there is nothing below."""
    if sum(below) <= 0.0:
        return None
    dice, pairs = random.Random(seed), list(zip(above, below, strict=True))
    ratios = []
    for _ in range(RESAMPLES):
        drawn = dice.choices(pairs, k=len(pairs))
        under = sum(low for _, low in drawn)
        if under > 0.0:
            ratios.append(sum(high for high, _ in drawn) / under)
    ratios.sort()
    return Interval(sum(above) / sum(below), _at(ratios, 0.025), _at(ratios, 0.975))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
