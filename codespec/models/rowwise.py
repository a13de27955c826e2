"""What a layer computes row by row, and its write into the cache: in one kernel on a CUDA device, in torch's own
operations anywhere else.

The formulas are the same; a kernel rounds once where torch rounds after each operation.

On a CPU torch computes sigmoid, SiLU and GELU in float32 with vectors, and what is left over at the end of a thread's
share with the C library, whose exponential differs in the last bit. Where shares end depends on the number of rows:
with three threads and 4864 features 16 rows differ from 512 in one value (any processor, torch 2.13). So `steady` adds
rows until each share ends with a row and with a vector, and a row's bits depend neither on the number of rows nor on
the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import pad

WIDE = torch.float32.itemsize  # sums of squares are taken in at least so many bytes
GRAIN = 32768  # values below which most loops stay on one thread (at::internal::GRAIN_SIZE)
SMALL = 16384  # values above which GELU takes all threads
STRIDE = 64  # values that no vector loop ends within: two of the widest vectors, of two bytes each
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019), in the weight's dtype."""
    if rows.device.type == "cuda":
        from codespec.models.cuda import rowwise_kernels  # Triton is there on machines with a GPU only

        return rowwise_kernels.rms_norm(rows, weight, eps)
    wide = rows.float() if rows.element_size() < WIDE else rows
    scale = torch.linalg.vecdot(wide, wide).mul_(1 / wide.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (wide * scale[..., None]).mul_(weight).to(weight.dtype)
    return normed


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """rows + added [N, size] in the rows' dtype, and the norm of that in the weight's."""
    if rows.device.type == "cuda":
        from codespec.models.cuda import rowwise_kernels

        return rowwise_kernels.add_rms_norm(rows, added, weight, eps)
    summed = rows + added
    return summed, rms_norm(summed, weight, eps)


def make_angles(cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` takes, from a rotary embedding's cosine and sine [N, 1, size]. Without a GPU the first half of the
    sine is negated here, once for all layers.
    """
    if sine.device.type == "cuda":
        return cosine, sine
    half = sine.shape[-1] // 2
    return cosine, torch.cat([-sine[..., :half], sine[..., half:]], dim=-1)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of [N, heads, size] by the result of `make_angles` [N, 1, size];
    halves are paired as transformers pairs them.
    """
    if heads.device.type == "cuda":
        from codespec.models.cuda import rowwise_kernels

        return rowwise_kernels.rotate(heads, cosine, sine)
    return torch.addcmul(heads * cosine, heads.roll(heads.shape[-1] // 2, dims=-1), sine)


def silu_mul(both: Tensor) -> Tensor:
    """silu of the first half of [N, 2 · size] times the second half."""
    if both.device.type == "cuda":
        from codespec.models.cuda import rowwise_kernels

        return rowwise_kernels.silu_mul(both)
    half = both.shape[1] // 2
    return steady(functional.silu, both[:, :half]) * both[:, half:]


def scatter(
    cached_keys: Tensor, cached_values: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Writes row i of keys [N, kv_heads, size] and values to position `positions[i]` of slot `slots[i]` of a layer's
    cache [slots, kv_heads, capacity, size].
    """
    if keys.device.type == "cuda":
        from codespec.models.cuda import rowwise_kernels

        rowwise_kernels.scatter(cached_keys, cached_values, slots, positions, keys, values)
        return
    cached_keys[slots, :, positions] = keys
    cached_values[slots, :, positions] = values


def steady_rows(count: int, size: int) -> int:
    """The least number of rows from `count` on, of `size` values each, whose shares end with rows and vectors."""
    threads = torch.get_num_threads()
    rows = count
    while True:
        values = rows * size
        shares = {min(threads, -(-values // GRAIN)), threads if values > SMALL else 1}
        if all(rows % share == 0 and rows // share * size % STRIDE == 0 for share in shares):
            return rows
        rows += 1


def steady(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """An activation of values [*, size], batch-invariant: all rows at once and a few more, or, where that would be many
    more, in pieces for one thread.
    """
    size = values.shape[-1]
    count = values.numel() // size
    rows = steady_rows(count, size) if count else 0
    if rows == count:
        return function(values if size % STRIDE == 0 else values.contiguous())
    if rows > 2 * count and size <= SMALL and size % STRIDE == 0:
        pieces = values.reshape(count, size).split(SMALL // size)
        return torch.cat([function(piece) for piece in pieces]).view(values.shape)
    padded = pad(values.reshape(count, size), (0, 0, 0, rows - count))
    return function(padded)[:count].view(values.shape)


class SteadyActivation(nn.Module):
    """A batch-invariant activation of a transformers layer."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Tensor:
        """The function of values [*, size]."""
        return steady(self.function, values)


def replace_activations(model: nn.Module) -> int:
    """Replaces every activation of the model in place; returns how many."""
    found = 0
    for parent in [m for m in model.modules() if m._modules and not isinstance(m, SteadyActivation)]:
        for name, child in list(parent._modules.items()):
            if child is not None and type(child).__module__ in ACTIVATIONS and not child._modules:
                setattr(parent, name, SteadyActivation(child))
                found += 1
    return found
