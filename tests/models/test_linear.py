"""Packed products equal plain ones, keep biases and ties, and say why where they can't be had."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from codespec.models import linear
from codespec.models.exactness import find_variance
from codespec.models.huge_pages import ask_huge_pages
from codespec.models.linear import FEW_ROWS, PackedLinear, can_pack, pack_linears, padded_rows
from tests.tiny_models import tiny_model

SIZES = st.integers(1, 90)
# An older processor packs float32 alone; then codespec says so and bfloat16 runs unpacked.
DTYPES = st.sampled_from([torch.float32, torch.bfloat16] if not can_pack(torch.bfloat16) else [torch.float32])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


@settings(max_examples=40)
@given(SIZES, SIZES, st.integers(1, 40), st.booleans(), st.booleans(), DTYPES)
def test_equals_linear(inner: int, outer: int, rows: int, biased: bool, exact: bool, dtype: torch.dtype) -> None:
    plain = nn.Linear(inner, outer, bias=biased).to(dtype).requires_grad_(False)
    packed = PackedLinear(plain.weight, plain.bias, exact)
    inputs = draw(rows, inner).to(dtype)
    wanted = inputs.float() @ plain.weight.float().T + (plain.bias.float() if biased else 0.0)
    got = packed(inputs)
    assert got.dtype == dtype and got.shape == (rows, outer)
    scale = (inputs.float().abs() @ plain.weight.float().abs().T).max().clamp(min=1e-3)
    assert (got.float() - wanted).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-2) * scale + 1e-5


@settings(max_examples=40)
@given(SIZES, SIZES, st.integers(2, 70), st.data(), DTYPES)
def test_a_row_does_not_depend_on_the_others(
    inner: int, outer: int, rows: int, data: st.DataObject, dtype: torch.dtype
) -> None:
    packed = PackedLinear(draw(outer, inner).to(dtype), draw(outer, seed=1).to(dtype), exact=True)
    inputs = draw(rows, inner, seed=2).to(dtype)
    whole = packed(inputs)
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    assert torch.equal(packed(inputs[begin:end]), whole[begin:end])
    assert torch.equal(packed(inputs.flip(0)), whole.flip(0))


def test_few_numbers_of_rows_are_computed() -> None:
    """The library keeps a kernel for each, so a daemon grows with every number it has not seen."""
    computed = [padded_rows(count) for count in range(513)]
    assert computed[: FEW_ROWS + 1] == list(range(FEW_ROWS + 1)) and len(set(computed)) <= 60
    assert all(count <= padded <= count * 9 / 8 for count, padded in enumerate(computed))
    assert all(padded_rows(padded) == padded for padded in computed)


@pytest.mark.parametrize("fastest", [2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_beyond_the_caches_take_the_fastest_rows(
    fastest: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured once a model's sizes; whatever comes of it, a row's bits are the same for every number of rows."""
    if can_pack(dtype):
        pytest.skip(can_pack(dtype))
    asked: list[tuple[list[int], int]] = []
    monkeypatch.setattr(linear, "LARGE", packed_bytes(90, dtype))
    monkeypatch.setattr(linear, "UNCACHED", 269 * 40 * dtype.itemsize)
    monkeypatch.setattr(linear, "_LEAST_ROWS", {})

    def measured(layers: dict[PackedLinear, int], least: int) -> int:
        asked.append((list(layers.values()), least))
        return fastest

    paged: list[int] = []
    monkeypatch.setattr(linear, "measure_least_rows", measured)
    monkeypatch.setattr(linear, "ask_huge_pages", lambda address, size: paged.append(size))

    def packed(*sizes: int) -> list[int]:
        layers = nn.ModuleList(nn.Linear(40, size, bias=False).to(dtype) for size in sizes)
        assert pack_linears(layers, exact=True) == len(sizes)
        inputs = draw(19, 40, seed=2).to(dtype)
        for layer in layers:
            whole = layer(inputs)
            assert all(torch.equal(layer(inputs[:count]), whole[:count]) for count in range(1, 20))
        return [layer.least_rows for layer in layers]  # type: ignore[misc]

    assert packed(40, 90, 90) == [2, 2, 2] and asked == [] == paged  # 220 rows of weights: may stay in the caches
    for _ in range(2):
        assert packed(40, 90, 160, 90) == [2, fastest, fastest, fastest]
    assert asked == [([2, 1], 2)], "two large ones of one kind and one of another, once"
    assert len(paged) == 6 and min(paged) >= packed_bytes(90, dtype), "each large one is laid out in large pages"


def packed_bytes(size: int, dtype: torch.dtype) -> int:
    """What a matrix of that size over 40 inputs takes once it is packed."""
    bytes_of: int = torch.ops.mkldnn._nbytes(PackedLinear(draw(size, 40).to(dtype), None, exact=True).packed)
    return bytes_of


def test_padded_only_where_a_step_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighed by how often a step has each matrix; one slow turn of many does not count."""
    clock, turns = [0.0], Counter[tuple[int, int]]()
    seconds = {
        (8, 2): 1.2,
        (8, 4): 1.0,
        (8, 5): 0.9,
        (8, 6): 1.3,
        (80, 2): 3.0,
        (80, 4): 2.8,
        (80, 5): 9.0,
        (80, 6): 9.0,
    }

    def layer(size: int) -> PackedLinear:
        made = PackedLinear(draw(size, 8), None, exact=True)

        def multiply(rows: Tensor) -> None:
            turns[size, len(rows)] += 1
            slow = 100.0 if turns[size, len(rows)] == 2 and len(rows) == 4 else 0.0
            clock.append(clock.pop() + seconds[size, len(rows)] + slow)

        monkeypatch.setattr(made, "multiply", multiply)
        return made

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    assert linear.measure_least_rows({layer(8): 24}, 2) == 5
    assert linear.measure_least_rows({layer(8): 24, layer(80): 1}, 2) == 4
    assert linear.measure_least_rows({layer(80): 1}, 2) == 4
    seconds.update({(80, 4): 3.1})
    assert linear.measure_least_rows({layer(80): 1}, 2) == 2


@pytest.mark.parametrize("plain", [0.5, 2.0])
def test_small_matrices_stay_plain_where_that_is_sooner(plain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a drafter, whose rows need not be exact; a large one and an exact one are packed whatever a call costs."""
    clock = [0.0]

    def timed(product: Callable[[nn.Module, Tensor], Tensor], seconds: float) -> Callable[[nn.Module, Tensor], Tensor]:
        def forward(self: nn.Module, rows: Tensor) -> Tensor:
            clock[0] += seconds
            return product(self, rows)

        return forward

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(nn.Linear, "forward", timed(nn.Linear.forward, plain))
    monkeypatch.setattr(PackedLinear, "forward", timed(PackedLinear.forward, 1.0))
    monkeypatch.setattr(linear, "LARGE", 60 * 40 * 4)

    def packed(exact: bool) -> list[bool]:
        layers = nn.ModuleList(nn.Linear(40, size).requires_grad_(False) for size in (30, 90))
        pack_linears(layers, exact)
        return [isinstance(layer, PackedLinear) for layer in layers]

    assert packed(exact=False) == [plain > 1.0, True] and packed(exact=True) == [True, True]


@pytest.mark.parametrize("offset", [0, 4096, 1 << 20])
def test_large_pages_hold_what_the_small_ones_held(offset: int) -> None:
    memory = draw(5 << 18).repeat(2)  # 10 MB
    before = memory.clone()
    ask_huge_pages(memory.data_ptr() + offset, memory.numel() * memory.element_size() - offset)
    assert torch.equal(memory, before)
    memory += 1
    assert torch.equal(memory, before + 1)


def test_no_rows_at_all() -> None:
    assert PackedLinear(draw(7, 12), None, exact=True)(draw(0, 12)).shape == (0, 7)


def test_leading_dimensions_and_strides_are_kept() -> None:
    packed = PackedLinear(draw(7, 12), None, exact=True)
    inputs = draw(2, 12, 3, seed=3).transpose(1, 2)
    assert packed(inputs).shape == (2, 3, 7)
    assert torch.equal(packed(inputs)[1, 2], packed(inputs[1:, 2:].contiguous())[0, 0])


class Block(nn.Module):
    """A linear layer, GPT-2's kind of one, one used twice, and a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.linear = nn.Linear(8, 8)
        self.conv = Conv1D(6, 8)
        self.back = nn.Linear(6, 8, bias=False)
        self.again = self.linear
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.again(self.back(self.conv(self.linear(self.embed(ids))))))


def test_a_whole_module() -> None:
    torch.manual_seed(0)
    block, ids = Block().requires_grad_(False), torch.arange(20)
    nn.init.normal_(block.conv.bias)
    wanted = block(ids)
    assert pack_linears(block, exact=True) == 4
    assert not [m for m in block.modules() if isinstance(m, nn.Linear | Conv1D)]
    assert block.again is block.linear
    assert relative(block(ids), wanted) <= 1e-5
    assert block.embed.weight.shape == (20, 8)  # tied: the embedding still needs it
    held = sum(p.numel() for p in block.parameters())
    assert held == 20 * 8, "plain weights are freed"


def test_it_can_be_had_here() -> None:
    assert can_pack(torch.float32) == ""
    assert can_pack(torch.bfloat16) == "" or "bf16 path needs the cpu support" in can_pack(torch.bfloat16)


def test_missing_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'\nand more")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", gone)
    reason = can_pack(torch.float32)
    assert "not usable" in reason and "_reorder_linear_weight" in reason and "\n" not in reason


def test_no_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert can_pack(torch.float32) == "this torch build has no oneDNN"


@pytest.mark.parametrize(
    ("fault", "words"),
    [(lambda out: out * 1.01, "wrong"), (lambda out: out + 1e-6 * out.shape[0], "depends on the number of rows")],
)
def test_an_op_that_is_off(fault: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, inputs: fault(plain(self, inputs)))
    assert words in can_pack(torch.float32)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_fallback_is_announced_and_works(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = tiny_model(architecture)
    assert not model.spec.packed
    assert model.spec.notes == (
        "this torch build has no oneDNN: plain products are used, slower and not row-invariant",
    )
    assert not [m for m in model.network.modules() if isinstance(m, PackedLinear)]
    model.allocate(2, 64)
    assert find_variance(model)  # so the engine does not promise exactness


def test_packing_is_on_by_itself() -> None:
    model = tiny_model("gpt2")
    assert model.spec.packed and model.spec.notes == ()
    assert [m for m in model.network.modules() if isinstance(m, linear.PackedLinear)]
