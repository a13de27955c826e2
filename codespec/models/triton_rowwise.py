"""Launches the row-wise kernels. Knows shapes; knows no model. Imports Triton, like models.triton_attention."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from codespec.models.kernels.rowwise import gate, keep, normalize, turn

TURNED_HEADS = 4  # heads that a program turns at once
GATED_COLUMNS = 1024


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`fused.rms_norm` of rows [N, size] or [N, heads, size] whose last dimension is dense."""
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    heads, size = (rows.shape[1] if rows.dim() == 3 else 1), rows.shape[-1]
    strides = rows.stride(0), rows.stride(1) if rows.dim() == 3 else 0
    _normalize(rows, None, weight, out, out, heads, *strides, eps, rows.numel() // size)
    return out


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`fused.add_rms_norm` of rows [N, size]."""
    summed, out = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    _normalize(rows, added.contiguous(), weight, summed, out, 1, rows.stride(0), 0, eps, rows.shape[0])
    return summed, out


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


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`fused.rotate` of heads [N, H, size] whose last dimension is dense, by angles [N, 1, size]."""
    count, number, size = heads.shape
    out = heads.new_empty(heads.shape)
    turn[(count, triton.cdiv(number, TURNED_HEADS))](
        heads, cosine, sine, out, heads.stride(0), heads.stride(1), cosine.stride(0),
        HEADS=number, HALF=size // 2, BLOCK_HEADS=TURNED_HEADS, BLOCK_HALF=triton.next_power_of_2(size // 2),
        num_warps=1,
    )  # fmt: skip
    return out


def silu_mul(both: Tensor) -> Tensor:
    """`fused.silu_mul` of both [N, 2 · size], dense."""
    count, size = both.shape[0], both.shape[1] // 2
    out = both.new_empty(count, size)
    gate[(count, triton.cdiv(size, GATED_COLUMNS))](both, out, SIZE=size, BLOCK=GATED_COLUMNS)
    return out


def scatter(
    cached_keys: Tensor, cached_values: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> None:
    """`fused.scatter`, keys and values in one launch."""
    keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in (keys, values))
    count, heads, size = keys.shape
    value_size = values.shape[2]
    keep[(count, heads)](
        keys, values, cached_keys, cached_values, slots, positions,
        *keys.stride()[:2], *values.stride()[:2], *cached_keys.stride()[:2], *cached_values.stride()[:2],
        SIZE=size, VALUE=value_size, BLOCK_SIZE=triton.next_power_of_2(size),
        BLOCK_VALUE=triton.next_power_of_2(value_size), num_warps=1,
    )  # fmt: skip
