"""Linear layers in 8-bit whole numbers, for drafters only. Knows shapes, nothing of models.

Weights are rounded once, a scale for each output; inputs at every product, one scale for all rows together. So a row's
result depends on its neighbours (measured: by 8.6 %): a drafter may guess with that, a target must not choose with it.
The product wants a processor that sums bytes without overflow (VNNI); `can_quantize` tries.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

TOLERANCE = 0.02  # of the largest result


class QuantizedLinear(nn.Module):
    """`nn.Linear` in 8 bits; float32 [*, in] -> [*, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        scales = (weight.abs().amax(dim=1) / 127.0).clamp(min=1e-9).double()
        zeros = torch.zeros(self.out_features, dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it is going to be removed; then `can_quantize` says so
            rounded = torch.quantize_per_channel(weight.detach().contiguous(), scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Products of every row with the rounded weight."""
        rows = inputs.reshape(-1, self.in_features)
        out: Tensor = torch.ops.quantized.linear_dynamic(rows, self.packed, False)
        return out.reshape(*inputs.shape[:-1], self.out_features)


def can_quantize() -> str:
    """Tries a product whose sums overflow where bytes are summed in pairs; returns "" or what is wrong."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(32, 64, generator=generator) + 0.5
    rows = torch.rand(3, 64, generator=generator) + 0.5
    try:
        got = QuantizedLinear(weight, None)(rows)
    except (RuntimeError, AttributeError) as error:
        return f"torch's 8-bit product is not usable ({str(error).splitlines()[0]})"
    wanted = rows @ weight.T
    if (got - wanted).abs().max() > TOLERANCE * wanted.abs().max():
        return "torch's 8-bit product is wrong on this processor"
    return ""


def quantize_linears(model: nn.Module) -> int:
    """Replaces every linear layer of a float32 model in place; returns how many."""
    made: dict[int, QuantizedLinear] = {}
    for parent in [module for module in model.modules() if module._modules]:
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Linear or type(child) is Conv1D:
                if id(child) not in made:
                    weight = child.weight.t() if isinstance(child, Conv1D) else child.weight
                    made[id(child)] = QuantizedLinear(weight, child.bias)
                setattr(parent, name, made[id(child)])
    return len(made)
