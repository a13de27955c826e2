"""What a layer does row by row, its write into the cache too: as one kernel on a CUDA device, as torch's own steps
anywhere else.

The formulas are the same; a kernel rounds once where the steps round each. Knows shapes; knows no model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019)."""
    if rows.device.type == "cuda":
        from codespec.models import triton_rowwise  # Triton is there on machines with a GPU only

        return triton_rowwise.rms_norm(rows, weight, eps)
    return functional.rms_norm(rows, weight.shape, weight, eps)


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """rows + added [N, size], and the norm of that."""
    if rows.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.add_rms_norm(rows, added, weight, eps)
    summed = rows + added
    return summed, functional.rms_norm(summed, weight.shape, weight, eps)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of [N, heads, size] by [N, 1, size], halves paired as transformers
    pairs them.
    """
    if heads.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.rotate(heads, cosine, sine)
    half = heads.shape[-1] // 2
    turned = torch.cat([-heads[..., half:], heads[..., :half]], dim=-1)
    return heads * cosine + turned * sine


def silu_mul(both: Tensor) -> Tensor:
    """silu of the first half of [N, 2 · size] times the second half."""
    if both.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.silu_mul(both)
    half = both.shape[1] // 2
    return functional.silu(both[:, :half]) * both[:, half:]


def scatter(
    cached_keys: Tensor, cached_values: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Writes row i of keys [N, kv_heads, size] and values to position `positions[i]` of slot `slots[i]` of a layer's
    cache [slots, kv_heads, capacity, size].
    """
    if keys.device.type == "cuda":
        from codespec.models import triton_rowwise

        triton_rowwise.scatter(cached_keys, cached_values, slots, positions, keys, values)
        return
    cached_keys[slots, :, positions] = keys
    cached_values[slots, :, positions] = values
