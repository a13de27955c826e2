"""Exact mode of models in torch: each planted kind of variance is padded away or reported.

Planted faults stand in for processors that the tests do not run on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch import attention, rowwise
from codespec.backends.torch.linear import TiledLinear, tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.rowwise import replace_activations, silu_mul, steady, steady_rows
from codespec.startup import batch_invariance
from codespec.startup.batch_invariance import check_exact, find_variance
from tests.backends.rounds import Replay, covering
from tests.tiny_models import tiny_model

Patch = pytest.MonkeyPatch
OFF = {torch.float32: 1.0 + 2.0**-19, torch.bfloat16: 1.0 + 2.0**-7}  # far below the threshold of the model check


def product(patch: Patch, fault: Callable[[Tensor, Tensor, TiledLinear], Tensor]) -> None:
    """Plant a fault in every product; it is called with the result, the rows and the layer."""
    plain = TiledLinear.multiply
    patch.setattr(TiledLinear, "multiply", lambda self, rows: fault(plain(self, rows), rows, self))


def queries(patch: Patch, fault: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Plant a fault in every call of attention; it is called with the result and the query."""
    plain = attention.scaled_dot_product_attention
    patch.setattr(
        attention,
        "scaled_dot_product_attention",
        lambda query, *rest, **how: fault(plain(query, *rest, **how), query),
    )


def scaled(out: Tensor, rows: slice, when: bool) -> Tensor:
    if not when:
        return out
    out = out.clone()
    out[..., rows, :] *= OFF[out.dtype]
    return out


def checked(dtype: torch.dtype = torch.float32, **change: Any) -> tuple[TorchModel, list[str]]:
    """Return a model whose exact mode was checked, and the notes."""
    model, notes = tiny_model("llama", dtype=dtype, **change), list[str]()
    model.allocate(3, 640)
    variance = check_exact(model, notes)
    assert model.exact is not bool(variance) and model.variance == variance and len(notes) == bool(variance)
    return model, notes


def plays_exactly(model: TorchModel, length: int = 140) -> bool:
    return Replay(model, length).play(covering(length)) == 0.0


@pytest.fixture
def model() -> TorchModel:
    return tiny_model("llama")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bits_that_change_with_the_number_of_rows(dtype: torch.dtype, monkeypatch: Patch) -> None:
    """Every call has the same number, whether few rows, many rows or one row alone is asked for."""
    product(monkeypatch, lambda out, rows, layer: out * OFF[out.dtype] ** (len(rows) % 5))
    queries(monkeypatch, lambda out, query: out * OFF[out.dtype] ** (query.shape[2] % 5))
    model, notes = checked(dtype)
    assert not notes and plays_exactly(model)
    model.set_exact(False)
    assert not plays_exactly(model)


def test_a_leak_where_the_depth_fills_no_tile_is_padded_away(monkeypatch: Patch) -> None:
    product(monkeypatch, lambda out, rows, layer: out + 0.0 * rows.sum() if rows.shape[1] % 32 else out)
    queries(monkeypatch, lambda out, query: out + 0.0 * query.sum() if query.shape[3] % 32 else out)
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80, "hidden_size": 128}
    model, notes = checked(**sizes)
    assert not notes and plays_exactly(model)


@pytest.mark.parametrize("part", ["products", "attention"])
def test_bits_that_depend_on_a_row_s_place_are_announced(part: str, monkeypatch: Patch) -> None:
    if part == "products":
        product(monkeypatch, lambda out, rows, layer: scaled(out, slice(1, 2), True))
    else:
        queries(monkeypatch, lambda out, query: scaled(out, slice(1, 2), True))
    model, notes = checked()
    message = "the logits of LlamaForCausalLM depend on how rows are batched (float32)"
    assert model.variance == message and not any(layer.exact for layer in tiled_linears(model.network))
    assert notes == [f"exact mode does not hold here ({message}): fast mode is used, near-ties may differ"]


def test_what_only_a_whole_forward_shows_is_announced(monkeypatch: Patch) -> None:
    """Here the norms between the products vary."""
    plain = rowwise.rms_norm
    monkeypatch.setattr(rowwise, "rms_norm", lambda rows, *rest: plain(rows, *rest) * (1.0 + 1e-6 * (len(rows) == 9)))
    assert checked()[0].variance == "the logits of LlamaForCausalLM depend on how rows are batched (float32)"


def test_a_fast_model_is_not_checked(monkeypatch: Patch) -> None:
    monkeypatch.setattr(batch_invariance, "find_variance", lambda *_: pytest.fail("it was checked"))
    notes: list[str] = []
    assert check_exact(tiny_model("llama", exact=False), notes) == "" and not notes


def test_a_model_runs_on_the_threads_with_which_it_was_checked(monkeypatch: Patch) -> None:
    """Another engine of the process may have changed the thread count since."""
    current = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: current[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: current.__setitem__(0, count))
    model, _ = checked()
    current[0] = 1
    model.forward([Rows(0, 0, [1, 2, 3])])
    assert current == [2]


def test_a_large_model_is_tried_by_its_first_layers(model: TorchModel, monkeypatch: Patch) -> None:
    model.allocate(3, 640)
    layers, shapes = model.network.blocks, model.shapes  # type: ignore[union-attr]
    seen: set[int] = set()
    plain = TorchModel.forward

    def watch(self: TorchModel, *rest: Any) -> Tensor:
        seen.add(len(self.network.blocks))  # type: ignore[arg-type]
        return plain(self, *rest)

    monkeypatch.setattr(TorchModel, "forward", watch)
    monkeypatch.setattr(batch_invariance, "OPERATIONS", 1.0)
    assert find_variance(model) == "" and seen == {1}
    assert model.network.blocks is layers and model.shapes is shapes


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [64, 333, 1000, 4864])
def test_activations_do_not_see_how_many_rows_there_are(size: int, threads: int) -> None:
    """torch's vector loops end at a thread's share, and the remainder is computed differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = torch.randn(130, 2 * size, generator=torch.Generator().manual_seed(0))
        for function in (torch.nn.functional.silu, torch.nn.functional.gelu, torch.sigmoid):
            whole = steady(function, values)
            assert all(torch.equal(steady(function, values[:rows]), whole[:rows]) for rows in (1, 2, 3, 8, 16, 31, 64))
        whole = silu_mul(values)
        assert all(torch.equal(silu_mul(values[:rows]), whole[:rows]) for rows in (1, 2, 3, 8, 16, 31, 64))
        if size % 64 == 0:
            assert all(rows <= steady_rows(rows, size) < rows + 2 * threads for rows in (1, 7, 100))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [16, 64])
def test_many_threads_do_not_pad_few_rows_to_many(threads: int, monkeypatch: Patch) -> None:
    computed: list[int] = []

    def count(values: torch.Tensor) -> torch.Tensor:
        computed.append(values.numel())
        return values

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    values = torch.randn(8, 4864)
    assert torch.equal(steady(count, values), values)
    assert sum(computed) <= 2 * values.numel() and max(computed) <= 16384


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "starcoder2", "gemma3", "phi3"])
def test_activations_of_transformers_layers_are_replaced(architecture: str) -> None:
    model = tiny_model(architecture)
    names = [type(module).__name__ for module in model.network.modules()]
    assert "SteadyActivation" in names
    assert replace_activations(model.network) == 0, "none is left, none is wrapped twice"


def test_more_threads_than_one_are_exact() -> None:
    """Threads divide a row's activations at other places for each number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for architecture in ("llama", "gpt2"):
            change = {"intermediate_size": 4864} if architecture == "llama" else {"n_inner": 4864}
            assert plays_exactly(tiny_model(architecture, **change), 30)
    finally:
        torch.set_num_threads(before)
