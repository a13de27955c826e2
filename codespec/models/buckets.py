"""The few sizes that a step on a device comes in: rows, and how many keys they may see. Knows numbers only.

A captured graph serves one size, so a step takes the smallest that it fits and the rest of it is padding. There are
many small sizes, because a step of few rows costs nearly what its padding makes it, and few large ones.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FIRST_REACH = 512


@dataclass(frozen=True, slots=True)
class Bucket:
    """A step of `rows` rows that see at most `reach` keys each."""

    rows: int
    reach: int


class Buckets:
    """The buckets of up to `most_rows` rows over a cache of `capacity` positions."""

    def __init__(self, most_rows: int, capacity: int) -> None:
        self.rows = tuple(rows for rows in ROWS if rows <= most_rows)
        self.reaches = reaches(capacity)

    def fit(self, rows: int, keys: int) -> Bucket | None:
        """The smallest bucket for so many rows that see so many keys at most; None where there are too many rows."""
        place = bisect_left(self.rows, rows)
        return Bucket(self.rows[place], self.reach(keys)) if place < len(self.rows) else None

    def reach(self, keys: int) -> int:
        """The smallest reach that covers so many keys."""
        return self.reaches[bisect_left(self.reaches, keys)]

    def largest_first(self) -> list[Bucket]:
        """All buckets: graphs share their memory, and what comes first sizes it."""
        return [Bucket(rows, reach) for rows in reversed(self.rows) for reach in reversed(self.reaches)]


def reaches(capacity: int) -> tuple[int, ...]:
    """FIRST_REACH and its doubles below `capacity`, and that."""
    found, reach = [], FIRST_REACH
    while reach < capacity:
        found.append(reach)
        reach *= 2
    return (*found, capacity)
