"""Packed products equal plain ones, keep biases and ties, and give a reason if they are unavailable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from codespec.backends.torch.linear import (
    FEW_ROWS,
    ROWS,
    TiledLinear,
    can_pack,
    computed_rows,
    tile_linears,
    tiled_linears,
)
from codespec.startup.batch_invariance import find_variance
from tests.tiny_models import tiny_model

SIZES = st.integers(1, 90)
# An older processor packs only float32; codespec then reports this and runs bfloat16 unpacked.
DTYPES = st.sampled_from([torch.float32, torch.bfloat16] if not can_pack(torch.bfloat16) else [torch.float32])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


@given(SIZES, SIZES, st.integers(1, 40), st.booleans(), st.booleans(), st.booleans(), DTYPES)
def test_equals_linear(
    inner: int, outer: int, rows: int, biased: bool, packed: bool, exact: bool, dtype: torch.dtype
) -> None:
    plain = nn.Linear(inner, outer, bias=biased).to(dtype).requires_grad_(False)
    tiled = TiledLinear(plain.weight, plain.bias, exact, packed)
    inputs = draw(rows, inner).to(dtype)
    wanted = inputs.float() @ plain.weight.float().T + (plain.bias.float() if biased else 0.0)
    got = tiled(inputs)
    assert got.dtype == dtype and got.shape == (rows, outer)
    scale = (inputs.float().abs() @ plain.weight.float().abs().T).max().clamp(min=1e-3)
    assert (got.float() - wanted).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-2) * scale + 1e-5


@given(SIZES, SIZES, st.integers(2, 70), st.data(), DTYPES, st.booleans())
def test_a_row_does_not_depend_on_the_others(
    inner: int, outer: int, rows: int, data: st.DataObject, dtype: torch.dtype, is_packed: bool
) -> None:
    """Packed in every size, otherwise in sizes of real models: a plain product of 10 outputs varies on an AMD EPYC."""
    inner, outer = (inner, outer) if is_packed else (8 * inner, 8 * outer)
    packed = TiledLinear(draw(outer, inner).to(dtype), draw(outer, seed=1).to(dtype), True, is_packed)
    inputs = draw(rows, inner, seed=2).to(dtype)
    whole = packed(inputs)
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    assert torch.equal(packed(inputs[begin:end]), whole[begin:end])
    assert torch.equal(packed(inputs.flip(0)), whole.flip(0))


def test_few_numbers_of_rows_are_computed() -> None:
    """The library keeps a kernel for each, so a daemon's memory grows with every new number."""
    computed = [computed_rows(count, False) for count in range(513)]
    assert computed[: FEW_ROWS + 1] == list(range(FEW_ROWS + 1)) and len(set(computed)) <= 60
    assert all(count <= padded <= count * 9 / 8 for count, padded in enumerate(computed))
    assert all(computed_rows(padded, False) == padded for padded in computed)
    assert [computed_rows(count, True) for count in (0, 1, ROWS, ROWS + 1)] == [0, ROWS, ROWS, 2 * ROWS]


def test_no_rows_at_all() -> None:
    assert TiledLinear(draw(7, 12), None, True)(draw(0, 12)).shape == (0, 7)


def test_leading_dimensions_and_strides_are_kept() -> None:
    packed = TiledLinear(draw(7, 12), None, True)
    inputs = draw(2, 12, 3, seed=3).transpose(1, 2)
    assert packed(inputs).shape == (2, 3, 7)
    assert torch.equal(packed(inputs)[1, 2], packed(inputs[1:, 2:].contiguous())[0, 0])


class Block(nn.Module):
    """A linear layer, GPT-2's kind of one, one used twice, and a head tied to the embedding."""

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
    assert tile_linears(block, exact=True, packed=True) == 4
    assert not [m for m in block.modules() if isinstance(m, nn.Linear | Conv1D)]
    assert block.again is block.linear
    assert relative(block(ids), wanted) <= 1e-5
    assert block.embed.weight.shape == (20, 8)  # tied, so the embedding still needs it
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


def test_an_op_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TiledLinear.forward
    monkeypatch.setattr(TiledLinear, "forward", lambda self, inputs: plain(self, inputs) * 1.01)
    assert "wrong" in can_pack(torch.float32)


def test_a_depth_that_lets_one_row_reach_another_is_padded() -> None:
    """oneDNN issue 5717: 16-bit products with AMX whose depth is not a multiple of 32.

    Plain products stay unpadded; a trial on the model checks whether their rows are independent.
    """
    packed = not can_pack(torch.bfloat16)
    layer = TiledLinear(draw(24, 80).bfloat16(), None, True, packed)
    assert layer.missing == 16 * packed and TiledLinear(draw(24, 80), None, True).missing == 0
    rows = draw(6, 80).bfloat16()
    beside = torch.full_like(rows, float("nan"))
    beside[2] = rows[2]
    assert torch.equal(layer(beside)[2], layer(rows)[2])


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_fallback_is_announced_and_works(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = tiny_model(architecture)
    assert not model.spec.packed
    assert model.spec.notes == ("this torch build has no oneDNN: plain products are used, which are slower",)
    assert tiled_linears(model.network) and not any(layer.packed for layer in tiled_linears(model.network))
    model.allocate(2, 64)
    assert find_variance(model) == ""


def test_packing_is_on_by_itself() -> None:
    model = tiny_model("gpt2")
    assert model.spec.packed and model.spec.notes == ()
    assert [m for m in model.network.modules() if isinstance(m, TiledLinear)]
