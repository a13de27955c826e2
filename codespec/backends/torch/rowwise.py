"""Row-wise operations of a layer, including the cache write, and batch-invariant parts of transformers layers.

The operations are fused kernels on CUDA and plain torch operations elsewhere. The formulas are the same, but a fused
kernel rounds once, while torch rounds after each operation.

On a CPU, torch computes sigmoid, SiLU and GELU in float32 with vector instructions. The values left at the end of a
thread's share are computed with the C library, whose exponential differs in the last bit. The boundaries of the shares
depend on the number of rows: with three threads and 4864 features, one value of 16 rows changes if the rows are
computed among 512 (any processor, torch 2.13). `steady` therefore pads the rows until each share ends on a row and a
vector boundary, so that a row's bits depend neither on the number of rows nor on the number of threads.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from codespec.backends.torch.linear import replace_modules

WIDE = torch.float32.itemsize  # minimum width in bytes for sums of squares
GRAIN = 32768  # below this many values most loops use one thread (at::internal::GRAIN_SIZE)
SMALL = 16384  # above this many values GELU uses all threads
STRIDE = 64  # a multiple of every vector loop's step; two of the widest vectors hold 64 two-byte values
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
PROBE_ROWS = 3  # rows in the trial of a norm
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.005}
SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, functional.sigmoid)


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the root-mean-square norm (Zhang and Sennrich 2019) over the last dimension, in the weight's dtype."""
    if rows.device.type == "cuda":
        from codespec.backends.torch.cuda import rowwise_kernels  # Triton is on GPU machines only

        return rowwise_kernels.rms_norm(rows, weight, eps)
    wide = rows.float() if rows.element_size() < WIDE else rows
    scale = torch.linalg.vecdot(wide, wide).mul_(1 / wide.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (wide * scale[..., None]).mul_(weight).to(weight.dtype)
    return normed


def add_rms_norm(rows: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return rows + added [N, size] in the dtype of the rows, and the norm of the sum in the weight's dtype."""
    if rows.device.type == "cuda":
        from codespec.backends.torch.cuda import rowwise_kernels

        return rowwise_kernels.add_rms_norm(rows, added, weight, eps)
    summed = rows + added
    return summed, rms_norm(summed, weight, eps)


def make_angles(cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [N, 1, size] as `rotate` expects them: on a CPU, the first half of the sine is negated."""
    if sine.device.type == "cuda":
        return cosine, sine
    half = sine.shape[-1] // 2
    return cosine, torch.cat([-sine[..., :half], sine[..., half:]], dim=-1)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary position embedding (Su et al. 2021) to [N, heads, size] with the results of `make_angles`."""
    if heads.device.type == "cuda":
        from codespec.backends.torch.cuda import rowwise_kernels

        return rowwise_kernels.rotate(heads, cosine, sine)
    return torch.addcmul(heads * cosine, heads.roll(heads.shape[-1] // 2, dims=-1), sine)


def silu_mul(both: Tensor) -> Tensor:
    """Return the SiLU of the first half of each row [2 · size], multiplied by the second half."""
    if both.device.type == "cuda":
        from codespec.backends.torch.cuda import rowwise_kernels

        return rowwise_kernels.silu_mul(both)
    half = both.shape[1] // 2
    return steady(functional.silu, both[:, :half]) * both[:, half:]


def scatter(
    cached_keys: Tensor, cached_values: Tensor, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Write row i of keys and values [N, kv_heads, size] to position `positions[i]` of slot `slots[i]`."""
    if keys.device.type == "cuda":
        from codespec.backends.torch.cuda import rowwise_kernels

        rowwise_kernels.scatter(cached_keys, cached_values, slots, positions, keys, values)
        return
    cached_keys[slots, :, positions] = keys
    cached_values[slots, :, positions] = values


def steady_rows(count: int, size: int) -> int:
    """Return the smallest number of rows >= `count` for which each thread's share ends on a row and vector boundary."""
    threads = torch.get_num_threads()
    rows = count
    while True:
        values = rows * size
        shares = {min(threads, -(-values // GRAIN)), threads if values > SMALL else 1}
        if all(rows % share == 0 and rows // share * size % STRIDE == 0 for share in shares):
            return rows
        rows += 1


def steady(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply an activation to padded values [*, size], so that a row's bits do not depend on the other rows."""
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


def in_small_pieces(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a function of several operations to rows [N, size], in padded pieces that one thread computes."""
    most = max(1, SMALL // rows.shape[1])
    unit = STRIDE // math.gcd(STRIDE, rows.shape[1] // 2)  # a gate halves the width
    most += -most % unit
    return torch.cat([function(pad(piece, (0, 0, 0, -len(piece) % unit)))[: len(piece)] for piece in rows.split(most)])


class SteadyActivation(nn.Module):
    """A batch-invariant activation of a transformers layer."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Tensor:
        """Apply the activation to values [*, size]."""
        return steady(self.function, values)


def replace_activations(model: nn.Module) -> int:
    """Replace every activation function of the model in place; return the number of replacements."""
    inside = {module.function for module in model.modules() if isinstance(module, SteadyActivation)}

    def make(layer: nn.Module) -> nn.Module | None:
        is_activation = type(layer).__module__ in ACTIVATIONS and not layer._modules
        return SteadyActivation(layer) if is_activation and layer not in inside else None

    return len(replace_modules(model, make))


class SteadySigmoids(TorchFunctionMode):
    """A context in which sigmoids are batch-invariant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make sigmoids batch-invariant; run other functions unchanged."""
        return steady(torch.sigmoid, args[0]) if func in SIGMOIDS else func(*args, **(kwargs or {}))


def steady_gates(model: nn.Module) -> None:
    """Make sigmoids batch-invariant in every transformers layer whose own code calls a sigmoid function."""
    gated = {kind for kind in {type(module) for module in model.modules()} if _calls_sigmoid(kind)}
    for module in model.modules():
        if type(module) in gated:
            run_inside(SteadySigmoids(), module)


def run_inside(mode: TorchFunctionMode, module: nn.Module) -> None:
    """Make every call of the module's `forward` run inside the context `mode`."""
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return own(*args, **kwargs)

    module.forward = forward


def _calls_sigmoid(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("transformers.models.") and "sigmoid(" in inspect.getsource(kind.forward)


class RowNorm(nn.Module):
    """A root-mean-square norm over the last dimension, multiplied by a weight [size].

    With `centered`, the mean is subtracted first, in one torch kernel that processes rows one by one.
    """

    def __init__(self, weight: Tensor, eps: float, *, centered: bool = False) -> None:
        super().__init__()
        self.centered = centered
        self.register_buffer("weight", weight, persistent=False)
        self.eps = eps

    def forward(self, values: Tensor) -> Tensor:
        """Normalize values [*, size] without changing their dtype."""
        assert isinstance(self.weight, Tensor)
        rows = values.reshape(-1, values.shape[-1])
        if self.centered:
            normed = functional.layer_norm(rows.float(), self.weight.shape, self.weight.float(), None, self.eps)
        else:
            normed = rms_norm(rows, self.weight, self.eps)
        return normed.to(values.dtype).view(values.shape)


def replace_norms(model: nn.Module) -> tuple[str, ...]:
    """Replace every norm of a known formula in place, except torch's LayerNorm; return the classes of other norms.

    On a GPU, the means that torch computes within norms depend on the number of rows.
    """
    left: set[str] = set()

    def make(layer: nn.Module) -> nn.Module | None:
        if layer._modules or isinstance(layer, nn.LayerNorm):
            return None
        norm = _same_norm(layer)
        if norm is None and "Norm" in type(layer).__name__:
            left.add(type(layer).__name__)
        return norm

    replace_modules(model, make)
    return tuple(sorted(left))


@torch.no_grad()
def _same_norm(module: nn.Module) -> RowNorm | None:
    """Return a norm with the same results as the module in a trial, or None. Gemma's weights are offsets from 1."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    inputs = inspect.signature(module.forward).parameters  # a second input (a gate) is unsupported
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float) or len(inputs) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = 1.0 + torch.randn(PROBE_ROWS, len(weight), generator=generator)  # nonzero mean, for centered norms
    rows = drawn.to(weight.device, weight.dtype)
    wanted = module(rows).float()
    own = weight.detach()
    norms = (RowNorm(own, eps), RowNorm(1.0 + own.float(), eps), RowNorm(own, eps, centered=True))
    gaps = [float((norm(rows).float() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) for norm in norms]
    return norms[gaps.index(min(gaps))] if min(gaps) <= TOLERANCE[weight.dtype] else None
