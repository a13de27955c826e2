"""Triton kernels and a launcher for matrix products with a fixed summation order.

Each element of the result is summed along the depth in steps of 16, in `SPLITS` splits. The tensor cores receive blocks
of 16 x 8 x 16 in order of depth for any tile size, and float32 values are multiplied and added one by one. An element's
bits therefore depend on its row, its column and the split length, not on its tile. For few rows the splits run in
parallel and a second kernel adds their sums; for many rows one program adds all splits of its tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codespec.backends.torch.cuda.launch import FEW_ROWS, ProductPlan, on_own_device, tile_of

ADDED_COLUMNS = 1024
# Triton's interpreter multiplies bfloat16 as integers, so widen first; the products are exact in float32 either way.
WIDEN = tl.constexpr(bool(triton.knobs.runtime.interpret))


@on_own_device
def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: ProductPlan) -> Tensor:
    """Compute rows [M, in] · weight [out, in]ᵀ + bias [out] -> [M, out] in the dtype of the rows."""
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


@triton.jit
def dot(left, right, total):
    """Return total [M, N] float32 + left [M, K] · right [K, N], with inputs in full precision."""
    if WIDEN:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")


@triton.jit(do_not_specialize=["rows", "splits"])
def product(
    inputs, weight, bias, out, rows, splits, input_row,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SPAN: tl.constexpr, SPLITS: tl.constexpr, APART: tl.constexpr,
    BIASED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute inputs [rows, DEPTH] · weight [COLUMNS, DEPTH]ᵀ in a grid of (tile, split).

    With APART, the sum of each split is stored in `out` [SPLITS, rows, COLUMNS] float32. Without APART, a program adds
    the splits of its tile in order, then the bias, and stores the result in `out` [rows, COLUMNS].
    """
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)  # adjacent programs share the weight's tile
    row = tl.program_id(0) % row_tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(0) // row_tiles * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inputs += row.to(tl.int64)[:, None] * input_row
    weight += (column % COLUMNS).to(tl.int64)[None, :] * DEPTH
    there = (row < rows)[:, None]
    split = tl.program_id(1)
    total = stretch(inputs, weight, there, split * SPAN, DEPTH, SPAN, BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)
    offset = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    held = there & (column < COLUMNS)[None, :]
    if APART:
        out += split.to(tl.int64) * rows * COLUMNS
    else:
        if SPLITS > 1:
            for index in range(1, splits):  # not SPLITS: an unrolled single iteration would accumulate into the total
                total += stretch(
                    inputs, weight, there, index * SPAN, DEPTH, SPAN, BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH
                )
        if BIASED:
            total += tl.load(bias + column, column < COLUMNS, 0.0).to(tl.float32)[None, :]
    tl.store(out + offset, total, held)


@triton.jit
def stretch(
    inputs, weight, there, start, DEPTH: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_DEPTH: tl.constexpr,
):  # fmt: skip
    """Return the sum of the products at depths start…start+SPAN-1."""
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for begin in range(start, tl.minimum(start + SPAN, DEPTH), BLOCK_DEPTH):
        depth = begin + tl.arange(0, BLOCK_DEPTH)
        if DEPTH % BLOCK_DEPTH == 0:
            left = tl.load(inputs + depth[None, :], there, 0.0)
            right = tl.load(weight + depth[:, None])
        else:
            left = tl.load(inputs + depth[None, :], there & (depth < DEPTH)[None, :], 0.0)
            right = tl.load(weight + depth[:, None], (depth < DEPTH)[:, None], 0.0)
        total = dot(left, right, total)
    return total


@triton.jit(do_not_specialize=["rows"])
def add_splits(
    apart, bias, out, rows,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr, BIASED: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the sums of all splits in `apart` [SPLITS, rows, COLUMNS] float32 in order, then the bias."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    held = column < COLUMNS
    apart += row * COLUMNS + column
    total = tl.load(apart, held, 0.0)
    for index in range(1, SPLITS):
        total += tl.load(apart + index * rows.to(tl.int64) * COLUMNS, held, 0.0)
    if BIASED:
        total += tl.load(bias + column, held, 0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + column, total, held)
