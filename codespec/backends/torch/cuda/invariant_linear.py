"""Batch-invariant linear layers for `exact` on a GPU.

Library products change kernels, tiles and summation order with the number of rows. Here a matrix is always summed in
the same order (`ProductPlan`, a function of its shape and dtype): by a Triton kernel on a CUDA device, and by torch in
float32 on other devices. On a CPU `torch.linear` is a faster equivalent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codespec.backends.torch.cuda.launch import ProductPlan, plan_of
from codespec.backends.torch.linear import replace_linears, weight_and_bias

PROBE_ROWS = (1, 2, 5, 16, 17, 33, 64, 65, 130)
PROBE_COLUMNS = 12_300  # wide enough that 65 rows use the largest tile


class InvariantLinear(nn.Module):
    """A batch-invariant `nn.Linear` with the same weight; [*, in] -> [*, out]."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias
        self.plan = plan_of(self.out_features, self.in_features, weight.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply every row by the weight."""
        rows = inputs.reshape(-1, self.in_features)
        return multiply(rows, self.weight, self.bias, self.plan).view(*inputs.shape[:-1], self.out_features)


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: ProductPlan) -> Tensor:
    """Compute rows [M, in] · weight [out, in]ᵀ + bias [out] -> [M, out], split by split."""
    if rows.device.type == "cuda":
        from codespec.backends.torch.cuda import product_kernels  # needs Triton, which only machines with a GPU have

        return product_kernels.multiply(rows, weight, bias, plan)
    return reference(rows, weight, bias, plan)


def reference(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: ProductPlan) -> Tensor:
    """Compute `multiply` with torch in float32."""
    total = rows.new_zeros(rows.shape[0], weight.shape[0], dtype=torch.float32)
    span = plan.span(rows.shape[1])
    for start in range(0, rows.shape[1], span):
        part = slice(start, start + span)
        total += rows[:, part].float() @ weight[:, part].float().T
    if bias is not None:
        total += bias.float()
    return total.to(rows.dtype)


def find_variance(device: torch.device, dtype: torch.dtype, columns: int = PROBE_COLUMNS) -> str:
    """Test the product on a device. Return "" if it is correct and batch-invariant, else the fault."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, 1000, generator=generator).to(device, dtype) for n in (columns, max(PROBE_ROWS)))
    near = 1e-5 if dtype == torch.float32 else 1e-2
    for splits in (1, 2):
        plan = ProductPlan(splits, 32)
        whole = multiply(rows, weight, None, plan)
        wanted = reference(rows, weight, None, plan)
        if (whole.float() - wanted.float()).abs().max() > near * wanted.float().abs().max():
            return f"the row-invariant product is wrong on {device.type} ({dtype})"
        if any(not torch.equal(multiply(rows[:count], weight, None, plan), whole[:count]) for count in PROBE_ROWS):
            return f"the row-invariant product depends on the number of rows on {device.type} ({dtype})"
    return ""


def fix_linears(model: nn.Module) -> int:
    """Replace every linear layer of the model in place and return their number. Tied weights stay tied."""
    return len(replace_linears(model, _make_invariant))


def _make_invariant(layer: nn.Module) -> InvariantLinear:
    weight, bias = weight_and_bias(layer)
    if not isinstance(weight, nn.Parameter):  # a transposed view of GPT-2's Conv1D weight
        weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    assert bias is None or isinstance(bias, nn.Parameter)
    return InvariantLinear(weight, bias)
