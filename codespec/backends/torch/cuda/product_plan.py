"""Choose the summation order and the tiles of a batch-invariant product.

The summation order (`ProductPlan`) depends on the matrix's shape and dtype, never on the number of rows. The
number of rows affects only the tile (`tile_of`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPAN_UNIT = 256  # a split's depth is a multiple of this, which is a multiple of every tile's depth
ENOUGH_PROGRAMS = 96  # minimum for a product of few rows: a GPU of this class has 132 multiprocessors
FEW_ROWS = 128  # up to this number of rows the splits run in parallel


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A matrix's summation order, and the tile for few rows: `columns` of the result, `depth` of the inputs."""

    splits: int
    columns: int
    depth: int = 128
    warps: int = 4
    stages: int = 4

    def span(self, depth: int) -> int:
        """Return the depth of one split; the last may be shorter."""
        return -(-depth // (self.splits * SPAN_UNIT)) * SPAN_UNIT


# Tuned on the device with tools/tune_kernels.py: (out, in, bytes per number) -> plan. `plan_of` guesses the others.
TUNED: dict[tuple[int, int, int], ProductPlan] = {}


def plan_of(columns: int, depth: int, dtype: torch.dtype) -> ProductPlan:
    """Return the plan for a weight [columns, depth], with enough programs to keep every multiprocessor reading."""
    tuned = TUNED.get((columns, depth, dtype.itemsize))
    if tuned is not None:
        return tuned
    width = 64 if columns >= 64 * 2 * ENOUGH_PROGRAMS else 32
    splits = 1
    while splits < 8 and -(-columns // width) * splits < ENOUGH_PROGRAMS and depth >= 4 * splits * SPAN_UNIT:
        splits *= 2
    splits = -(-depth // ProductPlan(splits, width).span(depth))  # drop empty splits
    return ProductPlan(splits, width, stages=6 if width == 32 else 4)  # each program has 60 KiB in flight


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's tile of the result, the depth of one loop iteration, and Triton's launch options."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile_of(count: int, columns: int, plan: ProductPlan, dtype: torch.dtype) -> Tile:
    """Return the tile for `count` rows and `columns` columns.

    No tile combines 64 rows with four warps, because Triton then emits other instructions.
    """
    if dtype == torch.float32:
        return Tile(16, 32, 32, warps=4, stages=2)
    if count <= 16:
        return Tile(16, plan.columns, plan.depth, plan.warps, plan.stages)
    if count <= 32 or plan.splits > 1:
        wide = -(-count // 32) * -(-columns // 64) * plan.splits >= ENOUGH_PROGRAMS
        return Tile(32, 64 if wide else 32, 64, warps=4, stages=4)
    if -(-count // 64) * -(-columns // 128) < 2 * ENOUGH_PROGRAMS:
        return Tile(64, 64, 64, warps=2, stages=4)
    return Tile(64, 128, 32, warps=2, stages=4)
