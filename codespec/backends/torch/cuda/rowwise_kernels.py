"""Row-wise operations of a layer as fused Triton kernels, and their launchers.

One program computes a row (or a part of a row) in float32, always in the same order, so a row's bits don't depend on
other rows. Each launcher implements the function of the same name in `codespec.backends.torch.rowwise`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codespec.backends.torch.cuda.launch import on_own_device

TURNED_HEADS = 4  # heads per program of `rotate`
GATED_COLUMNS = 1024


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute `rowwise.rms_norm` of rows [N, size] or [N, heads, size] whose last dimension is contiguous."""
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    heads, size = (rows.shape[1] if rows.dim() == 3 else 1), rows.shape[-1]
    strides = rows.stride(0), rows.stride(1) if rows.dim() == 3 else 0
    _normalize(rows, None, weight, out, out, heads, *strides, eps, rows.numel() // size)
    return out


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `rowwise.add_rms_norm` of rows [N, size]."""
    summed, out = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    _normalize(rows, added.contiguous(), weight, summed, out, 1, rows.stride(0), 0, eps, rows.shape[0])
    return summed, out


@on_own_device
def _normalize(
    rows: Tensor,
    added: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    out: Tensor,
    heads: int,
    outer: int,
    inner: int,
    eps: float,
    count: int,
) -> None:
    size = rows.shape[-1]
    block = triton.next_power_of_2(size)
    normalize[(count,)](
        rows, rows if added is None else added, weight, summed, out, outer, inner, eps,
        HEADS=heads, SIZE=size, BLOCK=block, ADDED=added is not None, num_warps=min(8, max(1, block // 512)),
    )  # fmt: skip


@on_own_device
def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Compute `rowwise.rotate` of heads [N, H, size], whose last dimension is contiguous, with angles [N, 1, size]."""
    count, number, size = heads.shape
    out = heads.new_empty(heads.shape)
    turn[(count, triton.cdiv(number, TURNED_HEADS))](
        heads, cosine, sine, out, heads.stride(0), heads.stride(1), cosine.stride(0),
        HEADS=number, HALF=size // 2, BLOCK_HEADS=TURNED_HEADS, BLOCK_HALF=triton.next_power_of_2(size // 2),
        num_warps=1,
    )  # fmt: skip
    return out


@on_own_device
def silu_mul(both: Tensor) -> Tensor:
    """Compute `rowwise.silu_mul` of a contiguous tensor `both` [N, 2 · size]."""
    count, size = both.shape[0], both.shape[1] // 2
    out = both.new_empty(count, size)
    gate[(count, triton.cdiv(size, GATED_COLUMNS))](both, out, SIZE=size, BLOCK=GATED_COLUMNS)
    return out


@on_own_device
def scatter(
    cached_keys: Tensor, cached_values: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Compute `rowwise.scatter` for keys and values in one launch."""
    keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in (keys, values))
    count, heads, size = keys.shape
    value_size = values.shape[2]
    keep[(count, heads)](
        keys, values, cached_keys, cached_values, slots, positions,
        *keys.stride()[:2], *values.stride()[:2], *cached_keys.stride()[:2], *cached_values.stride()[:2],
        SIZE=size, VALUE=value_size, BLOCK_SIZE=triton.next_power_of_2(size),
        BLOCK_VALUE=triton.next_power_of_2(value_size), num_warps=1,
    )  # fmt: skip


@triton.jit
def normalize(
    rows, added, weight, summed, out, outer, inner, eps,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Divide a row [SIZE] by its root mean square and multiply the result by weight [SIZE], one program per row.

    Row i starts at offset i // HEADS · outer + i % HEADS · inner. With ADDED, the row is rows + added, rounded to the
    model's dtype and also stored in `summed`; HEADS must be 1, and `added` and `summed` must be contiguous.
    """
    index = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    held = column < SIZE
    row = tl.load(rows + index // HEADS * outer + index % HEADS * inner + column, held, 0.0).to(tl.float32)
    offset = index * SIZE + column
    if ADDED:
        row = row + tl.load(added + offset, held, 0.0).to(tl.float32)
        row = row.to(summed.dtype.element_ty)
        tl.store(summed + offset, row, held)
        row = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / SIZE + eps)
    tl.store(out + offset, row * scale * tl.load(weight + column, held, 0.0).to(tl.float32), held)


@triton.jit
def turn(
    heads, cosine, sine, out, row_apart, head_apart, angle_apart,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate heads [HEADS, 2 · HALF] of a row by angles [2 · HALF] (rotary embedding with paired halves)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, BLOCK_HALF)
    there = column < HALF
    held = (head < HEADS)[:, None] & there[None, :]
    pointer = heads + row * row_apart + head[:, None] * head_apart + column[None, :]
    first, second = tl.load(pointer, held, 0.0).to(tl.float32), tl.load(pointer + HALF, held, 0.0).to(tl.float32)
    cosine += row * angle_apart + column
    sine += row * angle_apart + column
    here = tl.load(cosine, there, 0.0).to(tl.float32)[None, :], tl.load(sine, there, 0.0).to(tl.float32)[None, :]
    beyond = (
        tl.load(cosine + HALF, there, 0.0).to(tl.float32)[None, :],
        tl.load(sine + HALF, there, 0.0).to(tl.float32)[None, :],
    )
    pointer = out + (row * HEADS + head[:, None]) * (2 * HALF) + column[None, :]
    tl.store(pointer, first * here[0] - second * here[1], held)
    tl.store(pointer + HALF, second * beyond[0] + first * beyond[1], held)


@triton.jit
def gate(both, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply the SiLU of the first half of a row of `both` [2 · SIZE] by the second half of the row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = column < SIZE
    gated = tl.load(both + row * 2 * SIZE + column, held, 0.0).to(tl.float32)
    through = tl.load(both + row * 2 * SIZE + SIZE + column, held, 0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, gated / (1.0 + tl.exp(-gated)) * through, held)


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def keep(
    keys, values, cached_keys, cached_values, slots, positions,
    key_row, key_head, value_row, value_head, to_key_slot, to_key_head, to_value_slot, to_value_head,
    SIZE: tl.constexpr, VALUE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_VALUE: tl.constexpr,
):  # fmt: skip
    """Write a key [SIZE] and a value [VALUE] to the row's position in its slot, in a grid of (row, head)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, position = tl.load(slots + row), tl.load(positions + row)
    column = tl.arange(0, BLOCK_SIZE)
    pointer = cached_keys + slot * to_key_slot + head * to_key_head + position * SIZE + column
    tl.store(pointer, tl.load(keys + row * key_row + head * key_head + column, column < SIZE), column < SIZE)
    column = tl.arange(0, BLOCK_VALUE)
    pointer = cached_values + slot * to_value_slot + head * to_value_head + position * VALUE + column
    tl.store(pointer, tl.load(values + row * value_row + head * value_head + column, column < VALUE), column < VALUE)
