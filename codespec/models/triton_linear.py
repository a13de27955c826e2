"""Launches the row-invariant product: few rows read each weight once, many rows share its tiles, the bits are equal.

How a matrix is summed (`Plan.splits`) follows from its shape and dtype alone, never from the number of rows; the
number of rows only chooses the tile. With few rows the splits run side by side and are added by a second kernel; with
many, one program adds its own. Knows shapes; knows no model. Imports Triton, like models.triton_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from codespec.models.invariant_linear import ENOUGH_PROGRAMS, Plan
from codespec.models.kernels.products import add_splits, product

FEW_ROWS = 64  # up to here the splits run side by side
ADDED_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's part of the result, the depth it takes at once, and how Triton runs it."""

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
    if triton.cdiv(count, 64) * triton.cdiv(columns, 128) < 2 * ENOUGH_PROGRAMS:
        return Tile(64, 64, 64, warps=2, stages=4)
    return Tile(64, 128, 32, warps=2, stages=4)


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> Tensor:
    """rows [M, in] · weight [out, in]ᵀ + bias [out] -> [M, out] in the dtype of the rows."""
    (count, depth), columns = rows.shape, weight.shape[0]
    out = rows.new_empty(count, columns)
    if not count:
        return out
    rows, weight = rows if rows.stride(1) == 1 else rows.contiguous(), weight.contiguous()
    apart = plan.splits > 1 and count <= FEW_ROWS
    placed = rows.new_empty(plan.splits, count, columns, dtype=torch.float32) if apart else out
    tile = tile_of(count, columns, plan, rows.dtype)
    biased, bias = bias is not None, weight if bias is None else bias
    tiles = triton.cdiv(count, tile.rows) * triton.cdiv(columns, tile.columns)
    product[(tiles, plan.splits if apart else 1)](
        rows, weight, bias, placed, count, plan.splits, rows.stride(0),
        COLUMNS=columns, DEPTH=depth, SPAN=plan.span(depth), SPLITS=plan.splits, APART=apart, BIASED=biased,
        BLOCK_ROWS=tile.rows, BLOCK_COLUMNS=tile.columns, BLOCK_DEPTH=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if apart:
        add_splits[(count, triton.cdiv(columns, ADDED_COLUMNS))](
            placed, bias, out, count,
            COLUMNS=columns, SPLITS=plan.splits, BIASED=biased, BLOCK_COLUMNS=ADDED_COLUMNS,
        )  # fmt: skip
    return out
