"""With how many rows a model calls its kernels. Knows numbers; knows no kernel and no model.

Kernels choose their tiles and the order of their sums by the number of rows, so a row's bits may depend on how many
others are computed with it. One shape of call keeps them the same on any processor: as many rows in every product, as
many query rows over whole blocks of keys in every call of attention. `models.call_search` finds the cheapest shape that
does so on this machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KEY_BLOCK = 512  # keys of a block: torch's attention on a CPU takes so many at once
MOST_ROWS, HUGE_ROWS = 512, 32  # of a call that may have any number: the most that is tried
FEW_ROWS = 16  # up to here every number of rows has its own kernel


@dataclass(frozen=True, slots=True)
class CallShape:
    """How many rows a call has.

    rows          of a product; 0: any number from `least` on
    queries       query rows of attention come in multiples of this
    most_queries  the most query rows of a call; 0: no limit; equal to `queries`: always as many
    sizes         heads are padded to a multiple of so many features
    keys          keys come in blocks of so many
    """

    rows: int = 0
    least: int = 1
    queries: int = 1
    most_queries: int = 0
    sizes: int = 1
    keys: int = KEY_BLOCK

    def computed(self, count: int) -> int:
        """How many rows are computed for `count`: whole calls, or few different numbers. oneDNN compiles and keeps a
        kernel for each number and matrix (0.2-0.6 MB, half a millisecond), so above FEW_ROWS there are only eight
        numbers between a power of two and the next.
        """
        if not count:
            return 0
        if self.rows:
            return count + -count % self.rows
        count = max(count, self.least)
        if count <= FEW_ROWS:
            return count
        step = 1 << (count - 1).bit_length() - 4
        return -(-count // step) * step

    def most_rows(self, huge: bool = False) -> int:
        """The most rows of a product's call; 0: no limit. Where any number is allowed, no more than were tried, which
        are fewer for an output head (`huge`).
        """
        return self.rows or (0 if self.keys == 1 else HUGE_ROWS if huge else MOST_ROWS)

    def query_tiles(self, count: int) -> tuple[int, int]:
        """In how many calls `count` query rows are attended, and the rows of each."""
        tiles = -(-count // self.most_queries) if self.most_queries else 1
        each = -(-count // tiles)
        return tiles, each + -each % self.queries

    @property
    def label(self) -> str:
        """One line for a report."""
        products = f"{self.rows} rows a product" if self.rows else f"{self.least} or more rows a product"
        if self.most_queries == self.queries:
            attention = f"{self.queries} query rows a call of attention"
        else:
            most = f", at most {self.most_queries}" if self.most_queries else ""
            attention = f"query rows by {self.queries}{most}"
        padded = f", heads padded to {self.sizes}" if self.sizes > 1 else ""
        return f"{products}, {attention}{padded}"

    def as_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> CallShape:
        """Reads what `as_dict` wrote. Raises TypeError or ValueError for anything else."""
        shape = cls(**values)
        numbers = shape.as_dict()
        if any(type(number) is not int or not 0 <= number <= 4096 for number in numbers.values()):
            raise ValueError("a call shape is made of small whole numbers")
        if not all((shape.least, shape.queries, shape.sizes, shape.keys)) or 0 < shape.most_queries < shape.queries:
            raise ValueError("a call shape needs rows, queries, sizes and keys")
        return shape


FAST = CallShape(keys=1)  # nothing is padded: near-ties may be decided differently
UNTRIED = CallShape(least=2, queries=4)  # until the model's own has been found
