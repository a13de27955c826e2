"""A linear layer with int8 weights, and the row quantization of its inputs.

Each row is quantized with its own scale, 1/127 of its largest absolute value; a weight has one scale per output. The
result is (integer product · output scale) · row scale + bias. Each step is one operation with its own rounding and
reads no other row, so a row's bits do not depend on its batch.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codespec.models.int8.kernels import FULL, MOST_DEPTH, Choice, Kernel
from codespec.models.linear import replace_linears, weight_and_bias

TINY = 1e-30  # lower bound for the peak of a weight row
PIECE = 1 << 19  # values quantized at once, few enough to stay in the processor's cache
_FULL = torch.tensor(float(FULL))  # torch would convert a Python number at each call


class Codes(NamedTuple):
    """Quantized rows: codes [N, in] for the kernel, and the factors [N, 1] that scale their products."""

    codes: Tensor
    factor: Tensor


def quantize(rows: Tensor, kernel: Kernel) -> Codes:
    """Quantize float32 rows [N, in], each by its largest absolute value, which becomes its factor.

    A row with a NaN or an infinite value has non-finite products; a row of zeros has zero products.
    """
    peak = find_peak(rows)
    return Codes(_encode(rows, peak, kernel), peak)


def quantize_norm(rows: Tensor, eps: Tensor, kernel: Kernel) -> Codes:
    """Quantize the root-mean-square norm (Zhang and Sennrich 2019) of float32 rows [N, size].

    `eps` [1] is the norm's epsilon times the size. The weight includes the norm's gains, and its scales include the
    square root of the size (`normed` in `Int8Linear`). The norm changes only the factors: a row's codes do not depend
    on its magnitude.
    """
    length = torch.linalg.vector_norm(rows, 2, dim=1, keepdim=True)
    peak = find_peak(rows)
    return Codes(_encode(rows, peak, kernel), length.square_().add_(eps).rsqrt_().mul_(peak))


def find_peak(rows: Tensor) -> Tensor:
    """Return the largest absolute value of each row [N, 1]."""
    return rows.abs().amax(dim=1, keepdim=True)


def to_levels(rows: Tensor, peak: Tensor) -> Tensor:
    """Scale rows to integral values within ±127; NaN for a row of zeros, whose factor zeroes every product."""
    return (rows * (_FULL / peak)).round_()


def _encode(rows: Tensor, peak: Tensor, kernel: Kernel) -> Tensor:
    step = max(1, PIECE // rows.shape[1])
    if rows.shape[0] <= step:
        return kernel.encode(to_levels(rows, peak))
    parts = zip(rows.split(step), peak.split(step), strict=True)
    return torch.cat([kernel.encode(to_levels(*part)) for part in parts])


class Int8Linear(nn.Module):
    """`nn.Linear` with int8 weights [out, in] and float32 scales [out]; float32 [*, in] → [*, out]."""

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        choice: Choice,
        normed: bool = False,
        held: int = FULL,
    ) -> None:
        """Pack a weight within ±`held`; `normed` means that input rows come from `quantize_norm`."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        assert self.in_features <= MOST_DEPTH, "the sums may not fit into 32 bits"
        self.kernel = choice.kernel
        self.bias = bias
        self.weight = torch.empty(0)  # some layers read its dtype
        weight, scale = fit_range(weight, scale, held, choice.most)
        self.packed = choice.kernel.pack(weight, scale * ((sqrt(self.in_features) if normed else 1.0) / FULL))

    def multiply(self, rows: Codes) -> Tensor:
        """Return the float32 products [N, out] of quantized rows."""
        out = self.kernel.multiply(rows.codes, self.packed).mul_(rows.factor)
        return out if self.bias is None else out.add_(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Quantize float rows [*, in] and return their products."""
        rows = inputs.reshape(-1, self.in_features)
        out = self.multiply(quantize(rows.float(), self.kernel))
        return out.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)

    @property
    def nbytes(self) -> int:
        """Size of the weight in bytes."""
        return self.out_features * self.in_features


def integer_kernels(model: nn.Module) -> list[str]:
    """Return the names of the kernels that a model's int8 layers use, sorted."""
    return sorted({layer.kernel.name for layer in model.modules() if isinstance(layer, Int8Linear)})


def quantize_weight(weight: Tensor, most: int = FULL) -> tuple[Tensor, Tensor]:
    """Round a float32 weight [out, in] to int8 within ±`most`, with one scale per output [out]."""
    scale = weight.abs().amax(dim=1).clamp_(min=TINY).mul_(1 / most)
    return (weight / scale[:, None]).round_().clamp_(-most, most).to(torch.int8), scale


def fit_range(weight: Tensor, scale: Tensor, held: int, most: int) -> tuple[Tensor, Tensor]:
    """Rescale a weight from ±`held` to ±`most` and return it with its scales.

    If it already fits it is unchanged, else it is rounded again in place.
    """
    if held <= most:
        return weight, scale
    step = max(1, PIECE // weight.shape[1])
    for piece in weight.split(step):
        piece.copy_((piece * (most / held)).round_())
    return weight, scale * (held / most)


def quantize_linears(model: nn.Module, choice: Choice) -> None:
    """Replace every linear layer of a float model in place, without rotations.

    For architectures that `int8.convert` does not support.
    """

    def make(layer: nn.Module) -> Int8Linear:
        weight, bias = weight_and_bias(layer)
        codes, scale = quantize_weight(weight.detach().float(), choice.most)
        return Int8Linear(codes, scale, None if bias is None else bias.detach().float(), choice, held=choice.most)

    replace_linears(model, make)
