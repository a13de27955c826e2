"""Row-invariant linear layers: the order of summation depends only on the matrix, and a model's layers are kept as they
are.

The kernel itself is tested in tests/backends/cuda/kernels and tests/gpu.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from codespec_lab.bench.shapes import SHAPES
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from codespec.backends.torch import linear
from codespec.backends.torch.cuda.launch import SPAN_UNIT, TUNED, ProductPlan, plan_of
from codespec.backends.torch.linear import InvariantLinear, find_product_variance, fix_linears, multiply
from tests.backends.test_linear import Block, draw, relative

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


@given(st.integers(1, 90), st.integers(1, 600), st.integers(0, 9), st.booleans(), st.integers(1, 4), DTYPES)
def test_equals_linear(columns: int, depth: int, count: int, biased: bool, splits: int, dtype: torch.dtype) -> None:
    plain = nn.Linear(depth, columns, bias=biased).to(dtype).requires_grad_(False)
    layer = InvariantLinear(plain.weight, plain.bias)
    layer.plan = ProductPlan(splits, 32)
    inputs = draw(2, count, depth).to(dtype)
    got = layer(inputs)
    assert got.dtype == dtype and got.shape == (2, count, columns)
    if count:
        assert relative(got, plain(inputs)) <= (1e-5 if dtype == torch.float32 else 2e-2)


@given(st.integers(1, 200_000), st.integers(1, 30_000), DTYPES)
def test_the_splits_cover_the_depth(columns: int, depth: int, dtype: torch.dtype) -> None:
    """Each split but the last is full, and none is empty."""
    plan = plan_of(columns, depth, dtype)
    span = plan.span(depth)
    assert span % SPAN_UNIT == 0 and (plan.splits - 1) * span < depth <= plan.splits * span


def test_real_matrices_keep_a_gpu_busy() -> None:
    for shape in SHAPES.values():
        for columns, depth in ((shape.hidden, shape.inner), (2 * shape.inner, shape.hidden)):
            plan = plan_of(columns, depth, torch.bfloat16)
            assert 96 <= -(-columns // plan.columns) * plan.splits <= 3000


def test_a_tuned_plan_goes_before_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = ProductPlan(2, 16, 256, 2, 5)
    monkeypatch.setitem(TUNED, (123, 4567, 2), tuned)
    assert plan_of(123, 4567, torch.bfloat16) is tuned and plan_of(123, 4567, torch.float32) is not tuned


def test_a_whole_module() -> None:
    torch.manual_seed(0)
    block, ids = Block().requires_grad_(False), torch.arange(20)
    nn.init.normal_(block.conv.bias)
    wanted = block(ids)
    assert fix_linears(block) == 4
    assert not [m for m in block.modules() if isinstance(m, nn.Linear | Conv1D)]
    assert block.again is block.linear
    assert block.head.weight is block.embed.weight, "tied weights stay one"
    assert relative(block(ids), wanted) <= 1e-5


def test_the_probe_tells_a_wrong_product_and_one_that_depends_on_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, plain = torch.device("cpu"), multiply
    monkeypatch.setattr(linear, "multiply", lambda rows, *rest: plain(rows, *rest) * 1.1)
    assert "is wrong" in find_product_variance(cpu, torch.float32, columns=200)
    monkeypatch.setattr(linear, "multiply", lambda rows, *rest: plain(rows, *rest) + 1e-6 * len(rows))
    assert "depends on the number of rows" in find_product_variance(cpu, torch.float32, columns=200)


def test_a_cpu_needs_no_triton() -> None:
    """With None in its place, importing it fails; torch works without."""
    names = "attention, rowwise, loader, cuda.graphs"
    modules = ", ".join(f"codespec.backends.torch.{name}" for name in names.split(", "))
    script = f"import sys; sys.modules['triton'] = None; import {modules}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
