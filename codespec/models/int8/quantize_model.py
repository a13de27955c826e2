"""Quantize the linear layers of a loaded float model, for architectures that `int8.convert` does not support."""

from __future__ import annotations

from torch import nn

from codespec.models.int8.kernels import Choice
from codespec.models.int8.linear import Int8Linear, quantize_weight
from codespec.models.linear_layers import replace_linears, weight_and_bias


def quantize_linears(model: nn.Module, choice: Choice) -> int:
    """Replace every linear layer of a float model in place, without rotations. Return their number."""

    def make(layer: nn.Module) -> Int8Linear:
        weight, bias = weight_and_bias(layer)
        codes, scale = quantize_weight(weight.detach().float(), choice.most)
        return Int8Linear(codes, scale, None if bias is None else bias.detach().float(), choice, held=choice.most)

    return len(replace_linears(model, make))
