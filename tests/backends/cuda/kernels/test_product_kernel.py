"""The row-invariant product equals torch's, and a row's bits do not depend on the number of rows."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.backends.torch.cuda.launch import FEW_ROWS, SPAN_UNIT, ProductPlan, tile_of
from codespec.backends.torch.cuda.product_kernels import multiply
from codespec.backends.torch.linear import reference_product
from tests.backends.cuda.attention_cases import error

EXAMPLES = int(os.environ.get("CODESPEC_EXAMPLES", "6"))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
NEAR = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def draw(*sizes: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=2 * EXAMPLES)
@given(st.integers(1, 70), st.integers(1, 90), st.integers(1, 600), st.integers(1, 3), st.booleans(), DTYPES, st.data())
def test_equals_torch_and_rows_are_their_own(
    count: int, columns: int, depth: int, splits: int, biased: bool, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Any sizes: tails of rows, columns and depth.

    All tiles have one depth, as the interpreter sums a tile's depth at once; a GPU takes steps of 16 for any tile.
    """
    rows, weight = draw(count, depth, dtype=dtype, seed=1), draw(columns, depth, dtype=dtype, seed=2)
    bias = draw(columns, dtype=dtype, seed=3) if biased else None
    plan = ProductPlan(splits, 32, depth=64)
    whole = multiply(rows, weight, bias, plan)
    assert whole.dtype == dtype and whole.shape == (count, columns)
    assert error(whole, reference_product(rows.double(), weight.double(), bias, plan)) <= NEAR[dtype]
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    assert torch.equal(multiply(rows[begin:end], weight, bias, plan), whole[begin:end])


def test_splits_side_by_side_are_splits_one_after_another() -> None:
    """Above FEW_ROWS one program adds its own splits: the same sums in the same order."""
    rows, weight = draw(144, 600, dtype=torch.float32, seed=1), draw(40, 600, dtype=torch.float32, seed=2)
    plan = ProductPlan(3, 32, depth=64)
    assert len(rows) > FEW_ROWS
    assert torch.equal(multiply(rows[:FEW_ROWS], weight, None, plan), multiply(rows, weight, None, plan)[:FEW_ROWS])


def test_rows_may_lie_apart() -> None:
    wide, weight = draw(5, 96, dtype=torch.float32, seed=1), draw(20, 32, dtype=torch.float32, seed=2)
    plan = ProductPlan(1, 32, depth=64)
    got = multiply(wide[:, 32:64], weight, None, plan)
    assert torch.equal(got, multiply(wide[:, 32:64].contiguous(), weight, None, plan))
    assert multiply(wide[:0, :32], weight, None, plan).shape == (0, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [896, 3584, 151936])
def test_no_tile_takes_other_instructions(dtype: torch.dtype, columns: int) -> None:
    """On Hopper, 64 rows with four warps would be summed by another kind of instruction than 16."""
    for splits in (1, 4):
        for count in (1, 16, 17, 32, 33, 64, 65, 512, 8192):
            tile = tile_of(count, columns, ProductPlan(splits, 32), dtype)
            assert tile.rows < 64 or tile.warps < 4
            assert SPAN_UNIT % tile.depth == 0, "a split is a whole number of tiles deep"
