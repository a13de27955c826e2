"""Which draft positions of a batch are worth verifying. Knows chances, rows and a price; a pure function.

All rows of a step share one forward, so a row's cost depends on how many there are, not on whose they are: the best n
positions are the n likeliest. A position's survival never exceeds the one before it, so those are whole beginnings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def admit(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float], price: float) -> list[int]:
    """How many of each sequence's positions to verify: what maximizes expected tokens − price × seconds(positions).

    `survivals[r]` never rises; `seconds(n)` is what n more rows cost, in whatever shape; `price` is tokens a second.
    Among equals the shortest.
    """
    ranked = sorted(
        (-survival, number, position)
        for number, chances in enumerate(survivals)
        for position, survival in enumerate(chances)
    )
    best, count, tokens = 0.0, 0, 0.0
    for rows, (survival, _, _) in enumerate(ranked, 1):
        tokens -= survival
        gain = tokens - price * seconds(rows)
        if gain > best:
            best, count = gain, rows
    lengths = [0] * len(survivals)
    for _, number, _ in ranked[:count]:
        lengths[number] += 1
    return lengths
