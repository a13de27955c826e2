"""The row-wise kernels equal torch's operations, and a row's bits do not depend on other rows."""

from __future__ import annotations

import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.backends.torch import rowwise
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.cuda import rowwise_kernels
from tests.backends.cuda.attention_cases import error

EXAMPLES = int(os.environ.get("CODESPEC_EXAMPLES", "6"))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
NEAR = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ROWS, SIZES = st.integers(1, 5), st.integers(1, 100)


def draw(*sizes: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=EXAMPLES)
@given(ROWS, SIZES, DTYPES)
def test_norm(count: int, size: int, dtype: torch.dtype) -> None:
    rows, weight = draw(count, size, dtype=dtype), draw(size, dtype=dtype, seed=1)
    got = rowwise_kernels.rms_norm(rows, weight, 1e-6)
    assert got.dtype == dtype and error(got, rowwise.rms_norm(rows, weight, 1e-6)) <= NEAR[dtype]
    assert torch.equal(rowwise_kernels.rms_norm(rows[-1:], weight, 1e-6), got[-1:])


@settings(max_examples=EXAMPLES)
@given(ROWS, st.integers(1, 3), SIZES, DTYPES)
def test_norm_of_heads_among_others(count: int, heads: int, size: int, dtype: torch.dtype) -> None:
    mixed, weight = draw(count, heads + 2, size, dtype=dtype), draw(size, dtype=dtype, seed=1)
    got = rowwise_kernels.rms_norm(mixed[:, 1 : heads + 1], weight, 1e-6)
    assert got.is_contiguous() and error(got, rowwise.rms_norm(mixed[:, 1 : heads + 1], weight, 1e-6)) <= NEAR[dtype]


@settings(max_examples=EXAMPLES)
@given(ROWS, SIZES, DTYPES)
def test_sum_and_norm(count: int, size: int, dtype: torch.dtype) -> None:
    rows, added = draw(count, size, dtype=dtype), draw(count, size, dtype=dtype, seed=2)
    weight = draw(size, dtype=dtype, seed=1)
    summed, normed = rowwise_kernels.add_rms_norm(rows, added, weight, 1e-6)
    wanted = rowwise.add_rms_norm(rows, added, weight, 1e-6)
    # The interpreter truncates to bfloat16, whereas torch and a GPU round.
    assert error(summed, wanted[0]) <= (NEAR[dtype] if dtype == torch.bfloat16 else 0)
    assert torch.equal(normed, rowwise_kernels.rms_norm(summed, weight, 1e-6))
    assert error(normed, wanted[1]) <= NEAR[dtype]


@settings(max_examples=EXAMPLES)
@given(ROWS, st.integers(1, 7), st.integers(1, 40), DTYPES)
def test_rotary(count: int, heads: int, half: int, dtype: torch.dtype) -> None:
    """Heads within a wider row, as in the output of the fused projection."""
    mixed = draw(count, heads + 2, 2 * half, dtype=dtype)
    cosine, sine = draw(count, 1, 2 * half, dtype=dtype, seed=1), draw(count, 1, 2 * half, dtype=dtype, seed=2)
    got = rowwise_kernels.rotate(mixed[:, :heads], cosine, sine)
    assert (
        got.is_contiguous()
        and error(got, rowwise.rotate(mixed[:, :heads].double(), *rowwise.make_angles(cosine, sine))) <= NEAR[dtype]
    )
    assert torch.equal(rowwise_kernels.rotate(mixed[-1:, :heads], cosine[-1:], sine[-1:]), got[-1:])


@settings(max_examples=EXAMPLES)
@given(ROWS, st.integers(1, 1100), DTYPES)
def test_gate(count: int, size: int, dtype: torch.dtype) -> None:
    both = draw(count, 2 * size, dtype=dtype) * 4
    got = rowwise_kernels.silu_mul(both)
    assert got.dtype == dtype and error(got, rowwise.silu_mul(both.double())) <= NEAR[dtype]
    assert torch.equal(rowwise_kernels.silu_mul(both[-1:]), got[-1:])


@settings(max_examples=EXAMPLES)
@given(st.integers(1, 2), st.integers(1, 20), st.integers(1, 20), DTYPES, st.data())
def test_scatter(kv_heads: int, size: int, value_size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=4, unique=True))
    slots, positions = torch.tensor(places).T.contiguous()
    wanted, got = (KVCache({0: (kv_heads, size, value_size)}, 2, 50, dtype, torch.device("cpu"), True) for _ in "ab")
    keys = draw(len(places), kv_heads + 1, size, dtype=dtype)[:, 1:]
    values = draw(kv_heads, len(places), value_size, dtype=dtype, seed=1).transpose(0, 1)
    wanted.scatter(0, slots, positions, keys, values)
    rowwise_kernels.scatter(got.keys[0], got.values[0], slots, positions, keys, values)
    assert torch.equal(got.keys[0], wanted.keys[0]) and torch.equal(got.values[0], wanted.values[0])
