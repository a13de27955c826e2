"""Define the number of rows per kernel call, and what one call of attention computes.

Kernels choose their tiles and summation order according to the number of rows, so a row's bits may depend on how many
rows are computed with it. In exact mode every call therefore has one shape: products ROWS rows, attention ROWS query
rows over whole blocks of keys and heads of whole vectors. `startup.batch_invariance` checks it on each model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 16  # of a product's call, and query rows of a call of attention, in exact mode
KEY_BLOCK = 512  # keys per block, as in torch's CPU attention
HEAD_UNIT = 32  # head sizes are padded to a multiple: with AMX a NaN in one row may otherwise reach others
FEW_ROWS = 16  # up to this number of rows, every number has its own kernel in fast mode


def computed_rows(count: int, exact: bool) -> int:
    """Return the padded number of rows computed for `count` rows.

    oneDNN compiles and caches a kernel per matrix and number of rows (0.2-0.6 MB, half a millisecond), so in fast mode
    only eight numbers between consecutive powers of two are used above FEW_ROWS.
    """
    if exact:
        return count + -count % ROWS
    if count <= FEW_ROWS:
        return count
    step = 1 << (count - 1).bit_length() - 4
    return -(-count // step) * step


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
