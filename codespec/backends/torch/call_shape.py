"""Define the number of rows per kernel call, and what one call of attention computes.

Kernels choose their tiles and summation order according to the number of rows, so a row's bits may depend on how many
rows are computed with it. They stay the same on any processor if every product has a fixed number of rows and every
attention call has a fixed number of query rows over whole blocks of keys. `startup.calls` finds the cheapest shape with
this property on this machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

KEY_BLOCK = 512  # keys per block, as in torch's CPU attention
MAX_ROWS, HUGE_ROWS = 512, 32  # largest tested number of rows, if any number is allowed
FEW_ROWS = 16  # up to this number of rows, every number has its own kernel


@dataclass(frozen=True, slots=True)
class CallShape:
    """Numbers of rows in kernel calls.

    rows          rows of a product; 0: any number of at least `least`
    queries       query rows of attention are padded to a multiple of this
    max_queries  the most query rows of a call; 0: no limit; equal to `queries`: always exactly this number
    sizes         head sizes are padded to a multiple of this
    keys          keys per block
    """

    rows: int = 0
    least: int = 1
    queries: int = 1
    max_queries: int = 0
    sizes: int = 1
    keys: int = KEY_BLOCK

    def computed(self, count: int) -> int:
        """Return the padded number of rows computed for `count` rows.

        oneDNN compiles and caches a kernel per matrix and number of rows (0.2-0.6 MB, half a millisecond), so above
        FEW_ROWS only eight numbers between consecutive powers of two are used.
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

    def max_rows(self, huge: bool = False) -> int:
        """Return the most rows per product call; 0: no limit.

        If any number is allowed, this is the largest tested number, which is smaller for an output head (`huge`).
        """
        return self.rows or (0 if self.keys == 1 else HUGE_ROWS if huge else MAX_ROWS)

    def query_tiles(self, count: int) -> tuple[int, int]:
        """Return the number of attention calls for `count` query rows, and the query rows per call."""
        tiles = -(-count // self.max_queries) if self.max_queries else 1
        each = -(-count // tiles)
        return tiles, each + -each % self.queries

    @property
    def label(self) -> str:
        """A one-line description for reports."""
        products = f"{self.rows} rows a product" if self.rows else f"{self.least} or more rows a product"
        if self.max_queries == self.queries:
            attention = f"{self.queries} query rows a call of attention"
        else:
            most = f", at most {self.max_queries}" if self.max_queries else ""
            attention = f"query rows by {self.queries}{most}"
        padded = f", heads padded to {self.sizes}" if self.sizes > 1 else ""
        return f"{products}, {attention}{padded}"

    def as_dict(self) -> dict[str, int]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> CallShape:
        """Parse the output of `as_dict`. Raise TypeError or ValueError if it is invalid."""
        shape = cls(**values)
        numbers = shape.as_dict()
        if any(type(number) is not int or not 0 <= number <= 4096 for number in numbers.values()):
            raise ValueError("the fields of a call shape are integers from 0 to 4096")
        if not all((shape.least, shape.queries, shape.sizes, shape.keys)) or 0 < shape.max_queries < shape.queries:
            raise ValueError("a call shape needs positive sizes, and max_queries of 0 or at least queries")
        return shape


FAST = CallShape(keys=1)  # no padding: near-ties may resolve differently
UNTRIED = CallShape(least=2, queries=4)  # default until the search has run


@dataclass(frozen=True, slots=True)
class Scoring:
    """Parameters by which a layer turns the scores of a row's keys into weights.

    window   sliding window in tokens; 0: none
    softcap  bound on the scores (Gemma 2)
    sinks    [heads]: each takes a share of every row's weight (gpt-oss)
    """

    scale: float
    window: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def eager(self) -> bool:
        """Whether torch has no kernel for this attention."""
        return self.softcap is not None or self.sinks is not None

    def bounded(self, scores: Tensor) -> Tensor:
        """Apply the softcap."""
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


@dataclass(frozen=True, slots=True)
class Span:
    """Rows begin…end-1 of a flat forward, which belong to `slot` at positions start, start+1, …"""

    slot: int
    start: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """Number of rows in the span."""
        return self.end - self.begin

    @property
    def length(self) -> int:
        """Tokens of the sequence, including these rows."""
        return self.start + self.rows
