"""How a row-invariant product is summed and cut into tiles, by numbers alone.

The order of a matrix's sums (`Plan`) follows from its shape and dtype, never from the number of rows. The number of
rows chooses the tile only (`tile_of`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPAN_UNIT = 256  # a split's depth is a multiple of it, and of every tile's
ENOUGH_PROGRAMS = 96  # that a product of few rows should start: a GPU of this class has 132 processors
FEW_ROWS = 64  # up to here the splits run side by side


@dataclass(frozen=True, slots=True)
class Plan:
    """How a matrix is summed, and the tile of a program with few rows: `columns` of the result, `depth` of inputs."""

    splits: int
    columns: int
    depth: int = 128
    warps: int = 4
    stages: int = 4

    def span(self, depth: int) -> int:
        """The depth of one split; the last may be shorter."""
        return -(-depth // (self.splits * SPAN_UNIT)) * SPAN_UNIT


# Timed on the device by tools/tune_kernels.py: (out, in, bytes of a number) -> plan. Others are guessed.
TUNED: dict[tuple[int, int, int], Plan] = {}


def plan_of(columns: int, depth: int, dtype: torch.dtype) -> Plan:
    """The plan for a weight [columns, depth], with enough programs to keep every processor reading."""
    found = TUNED.get((columns, depth, dtype.itemsize))
    if found is not None:
        return found
    width = 64 if columns >= 64 * 2 * ENOUGH_PROGRAMS else 32
    splits = 1
    while splits < 8 and -(-columns // width) * splits < ENOUGH_PROGRAMS and depth >= 4 * splits * SPAN_UNIT:
        splits *= 2
    splits = -(-depth // Plan(splits, width).span(depth))  # without empty ones
    return Plan(splits, width, stages=6 if width == 32 else 4)  # each program has 60 KiB in flight


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's part of the result, the depth of one turn of its loop, and how Triton runs it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile_of(count: int, columns: int, plan: Plan, dtype: torch.dtype) -> Tile:
    """The tile for `count` rows of `columns`. None has 64 rows and four warps at once: those take other
    instructions.
    """
    if dtype == torch.float32:
        return Tile(16, 32, 32, warps=4, stages=2)
    if count <= 16:
        return Tile(16, plan.columns, plan.depth, plan.warps, plan.stages)
    if count <= 32 or plan.splits > 1:
        return Tile(32, 64, 64, warps=4, stages=4)
    if -(-count // 64) * -(-columns // 128) < 2 * ENOUGH_PROGRAMS:
        return Tile(64, 64, 64, warps=2, stages=4)
    return Tile(64, 128, 32, warps=2, stages=4)
