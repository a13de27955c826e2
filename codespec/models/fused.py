"""What a layer does row by row, its write into the cache too: as one kernel on a CUDA device, as torch's own steps
anywhere else.

The formulas are the same; a kernel rounds once where the steps round each. Knows shapes; knows no model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from codespec.models.elementwise import steady

WIDE = torch.float32.itemsize  # sums of squares are taken in numbers at least so wide


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019), in the weight's numbers."""
    if rows.device.type == "cuda":
        from codespec.models import triton_rowwise  # Triton is there on machines with a GPU only

        return triton_rowwise.rms_norm(rows, weight, eps)
    wide = rows.float() if rows.element_size() < WIDE else rows
    scale = torch.linalg.vecdot(wide, wide).mul_(1 / wide.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (wide * scale[..., None]).mul_(weight).to(weight.dtype)
    return normed


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """rows + added [N, size] in the rows' numbers, and the norm of that in the weight's."""
    if rows.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.add_rms_norm(rows, added, weight, eps)
    summed = rows + added
    return summed, rms_norm(summed, weight, eps)


def make_angles(cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` takes, from a rotary embedding's cosine and sine [N, 1, size]: off a graphics processor the first
    half of the sine is negated here, once for all layers.
    """
    if sine.device.type == "cuda":
        return cosine, sine
    half = sine.shape[-1] // 2
    return cosine, torch.cat([-sine[..., :half], sine[..., half:]], dim=-1)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of [N, heads, size] by what `make_angles` gave, [N, 1, size], halves
    paired as transformers pairs them.
    """
    if heads.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.rotate(heads, cosine, sine)
    return torch.addcmul(heads * cosine, heads.roll(heads.shape[-1] // 2, dims=-1), sine)


def silu_mul(both: Tensor) -> Tensor:
    """silu of the first half of [N, 2 · size] times the second half."""
    if both.device.type == "cuda":
        from codespec.models import triton_rowwise

        return triton_rowwise.silu_mul(both)
    half = both.shape[1] // 2
    return steady(functional.silu, both[:, :half]) * both[:, half:]


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
