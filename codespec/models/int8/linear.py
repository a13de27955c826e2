"""A linear layer with int8 weights, and the quantized rows that it multiplies. Knows shapes, no models.

Each row is quantized with its own scale, a 127th of its largest value; a weight has one scale for each output. The
result is (integer product · output's scale) · row's scale + bias. Each step is one operation with its own rounding, and
none reads other rows, so a row's bits depend on nothing else.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codespec.models.int8.kernels import FULL, MOST_DEPTH, Choice, Kernel

TINY = 1e-30  # the least peak of a weight's row
PIECE = 1 << 19  # values that are quantized at once: they stay in the processor's cache
_FULL = torch.tensor(float(FULL))  # torch would make a number a tensor at each call


class Codes(NamedTuple):
    """Quantized rows: codes [N, in] for the kernel, and the factors [N, 1] of their products."""

    codes: Tensor
    factor: Tensor


def quantize(rows: Tensor, kernel: Kernel) -> Codes:
    """Quantizes float32 rows [N, in], each by its largest value, which becomes the factor of its products.

    The products of a row with a NaN or an infinite value are not finite; those of a row of zeros are zero.
    """
    peak = find_peak(rows)
    return Codes(_encode(rows, peak, kernel), peak)


def quantize_norm(rows: Tensor, eps: Tensor, kernel: Kernel) -> Codes:
    """Quantizes the root-mean-square norm (Zhang and Sennrich 2019, without gains) of float32 rows [N, size]. `eps` [1]
    is the norm's, times the size. The scales of the weight contain the square root of the size (`normed`, below).

    The norm changes only the factors: the codes of a row do not depend on its length.
    """
    peak = find_peak(rows)
    length = torch.linalg.vector_norm(rows, 2, dim=1, keepdim=True)
    return Codes(_encode(rows, peak, kernel), length.square_().add_(eps).rsqrt_().mul_(peak))


def find_peak(rows: Tensor) -> Tensor:
    """The largest absolute value of each row [N, 1]."""
    return rows.abs().amax(dim=1, keepdim=True)


def to_levels(rows: Tensor, peak: Tensor) -> Tensor:
    """Rows as whole numbers within ±127; NaN for a row of zeros, whose factor makes every product zero."""
    return (rows * (_FULL / peak)).round_()


def _encode(rows: Tensor, peak: Tensor, kernel: Kernel) -> Tensor:
    step = max(1, PIECE // rows.shape[1])
    if rows.shape[0] <= step:
        return kernel.encode(to_levels(rows, peak))
    parts = zip(rows.split(step), peak.split(step), strict=True)
    return torch.cat([kernel.encode(to_levels(*part)) for part in parts])


class Int8Linear(nn.Module):
    """`nn.Linear` of int8 weights [out, in] with float32 scales [out]; float32 [*, in] → [*, out]."""

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        choice: Choice,
        normed: bool = False,
        held: int = FULL,
    ) -> None:
        """`normed` says that its rows come from `quantize_norm`, `held` that the weight is within ± this."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        assert self.in_features <= MOST_DEPTH, "sums of so many products may not fit into 32 bits"
        self.kernel = choice.kernel
        self.bias = bias
        weight, scale = fit_range(weight, scale, held, choice.most)
        self.packed = choice.kernel.pack(weight, scale * ((sqrt(self.in_features) if normed else 1.0) / FULL))

    def multiply(self, rows: Codes) -> Tensor:
        """The products [N, out] of quantized rows, in float32."""
        out = self.kernel.multiply(rows.codes, self.packed).mul_(rows.factor)
        return out if self.bias is None else out.add_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """The products of float rows [*, in], which are quantized first."""
        rows = inputs.reshape(-1, self.in_features)
        out = self.multiply(quantize(rows.float(), self.kernel))
        return out.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)

    @property
    def nbytes(self) -> int:
        """The size of the weight in bytes."""
        return self.out_features * self.in_features


def integer_kernels(model: nn.Module) -> list[str]:
    """The names of the kernels of a model's integer products."""
    return sorted({layer.kernel.name for layer in model.modules() if isinstance(layer, Int8Linear)})


def quantize_weight(weight: Tensor, most: int = FULL) -> tuple[Tensor, Tensor]:
    """Rounds a float32 weight [out, in] to int8 within ±`most` with a scale for each output [out]."""
    scale = weight.abs().amax(dim=1).clamp_(min=TINY).mul_(1 / most)
    return (weight / scale[:, None]).round_().clamp_(-most, most).to(torch.int8), scale


def fit_range(weight: Tensor, scale: Tensor, held: int, most: int) -> tuple[Tensor, Tensor]:
    """Brings a weight within ±`held` to ±`most`, with its scales: unchanged if it fits, else rounded again in place."""
    if held <= most:
        return weight, scale
    step = max(1, PIECE // weight.shape[1])
    for piece in weight.split(step):
        piece.copy_((piece * (most / held)).round_())
    return weight, scale * (held / most)
