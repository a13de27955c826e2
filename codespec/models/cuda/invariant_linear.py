"""Batch-invariant linear layers for `exact` on a GPU.

Library products change kernels, tiles and summation order with the number of rows. Here a matrix is always summed in
the same order (`ProductPlan`, a function of its shape and dtype): by a Triton kernel on a CUDA device, and by torch in
float32 on other devices. The number of rows affects only the tile (`tile_of`). On a CPU `models.linear` is a faster
equivalent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codespec.models.linear import replace_linears, weight_and_bias

PROBE_ROWS = (1, 2, 5, 16, 17, 33, 64, 65, 130)
PROBE_COLUMNS = 12_300  # wide enough that 65 rows use the largest tile
SPAN_UNIT = 256  # a split's depth is a multiple of this, which is a multiple of every tile's depth
ENOUGH_PROGRAMS = 96  # minimum for a product of few rows: a GPU of this class has 132 multiprocessors
FEW_ROWS = 128  # up to this number of rows the splits run in parallel


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A matrix's summation order, and the tile for few rows: `columns` of the result, `depth` of the inputs."""

    splits: int
    columns: int
    depth: int = 128
    warps: int = 4
    stages: int = 4

    def span(self, depth: int) -> int:
        """Return the depth of one split; the last may be shorter."""
        return -(-depth // (self.splits * SPAN_UNIT)) * SPAN_UNIT


# Tuned on the device with tools/tune_kernels.py: (out, in, bytes per number) -> plan. `plan_of` guesses the others.
TUNED: dict[tuple[int, int, int], ProductPlan] = {}


def plan_of(columns: int, depth: int, dtype: torch.dtype) -> ProductPlan:
    """Return the plan for a weight [columns, depth], with enough programs to keep every multiprocessor reading."""
    found = TUNED.get((columns, depth, dtype.itemsize))
    if found is not None:
        return found
    width = 64 if columns >= 64 * 2 * ENOUGH_PROGRAMS else 32
    splits = 1
    while splits < 8 and -(-columns // width) * splits < ENOUGH_PROGRAMS and depth >= 4 * splits * SPAN_UNIT:
        splits *= 2
    splits = -(-depth // ProductPlan(splits, width).span(depth))  # drop empty splits
    return ProductPlan(splits, width, stages=6 if width == 32 else 4)  # each program has 60 KiB in flight


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's tile of the result, the depth of one loop iteration, and Triton's launch options."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile_of(count: int, columns: int, plan: ProductPlan, dtype: torch.dtype) -> Tile:
    """Return the tile for `count` rows and `columns` columns.

    No tile combines 64 rows with four warps, because Triton then emits other instructions.
    """
    if dtype == torch.float32:
        return Tile(16, 32, 32, warps=4, stages=2)
    if count <= 16:
        return Tile(16, plan.columns, plan.depth, plan.warps, plan.stages)
    if count <= 32 or plan.splits > 1:
        wide = -(-count // 32) * -(-columns // 64) * plan.splits >= ENOUGH_PROGRAMS
        return Tile(32, 64 if wide else 32, 64, warps=4, stages=4)
    if -(-count // 64) * -(-columns // 128) < 2 * ENOUGH_PROGRAMS:
        return Tile(64, 64, 64, warps=2, stages=4)
    return Tile(64, 128, 32, warps=2, stages=4)


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
        from codespec.models.cuda import product_kernels  # needs Triton, which only machines with a GPU have

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
    return len(replace_linears(model, _take_over))


def _take_over(layer: nn.Module) -> InvariantLinear:
    weight, bias = weight_and_bias(layer)
    if not isinstance(weight, nn.Parameter):  # a transposed view of GPT-2's Conv1D weight
        weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    assert bias is None or isinstance(bias, nn.Parameter)
    return InvariantLinear(weight, bias)
