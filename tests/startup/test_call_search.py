"""The search for a call shape: each planted kind of variance is fixed by a later candidate or reported.

Planted faults stand in for processors that the tests do not run on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from codespec.backends.torch import attention, linear, rowwise
from codespec.backends.torch.call_shape import FAST, CallShape
from codespec.backends.torch.linear import TiledLinear, tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.rowwise import replace_activations, silu_mul, steady, steady_rows
from codespec.startup import batch_invariance, calls
from codespec.startup.batch_invariance import find_variance
from codespec.startup.calls import find_calls, settle
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


def settled(dtype: torch.dtype = torch.float32, architecture: str = "llama", **change: Any) -> tuple[TorchModel, str]:
    """Search a model's call shape; return the model and the variance found."""
    model = tiny_model(architecture, dtype=dtype, **change)
    model.allocate(3, 640)
    found = settle(model)
    assert model.exact is not bool(found.variance) and model.calls == found.calls
    return model, found.variance


def plays_exactly(model: TorchModel, length: int = 140) -> bool:
    return Replay(model, length).play(covering(length)) == 0.0


@pytest.fixture
def model() -> TorchModel:
    """Return a model made before any fault is planted."""
    return tiny_model("llama")


@pytest.mark.parametrize(("most", "dtype"), [(100, torch.bfloat16), (511, torch.float32)], ids=str)
def test_bits_that_change_above_some_number_of_rows(most: int, dtype: torch.dtype, monkeypatch: Patch) -> None:
    """With AMX they change above 32 rows, or above 96, or only from 100 to 128, depending on the matrix."""
    tiny_model("llama", dtype=dtype)  # find its call shape before planting the fault
    product(monkeypatch, lambda out, rows, layer: scaled(out, slice(None), len(rows) > most))
    model, variance = settled(dtype)
    assert variance == "" and model.calls.rows in (16, 32)
    assert plays_exactly(model)
    model.use(CallShape(queries=model.calls.queries))
    assert find_variance(model, chunk=512), "the fault is there"


def test_bits_of_one_matrix_alone(model: TorchModel, monkeypatch: Patch) -> None:
    """And only at two numbers of rows."""
    product(
        monkeypatch,
        lambda out, rows, layer: scaled(out, slice(None), layer.in_features == 256 and len(rows) in (104, 128)),
    )
    model, variance = settled()
    assert variance == "" and model.calls.rows
    assert plays_exactly(model)


def test_bits_that_change_for_few_rows_are_padded_away(model: TorchModel, monkeypatch: Patch) -> None:
    product(monkeypatch, lambda out, rows, layer: scaled(out, slice(None), len(rows) < 5))
    model, variance = settled()
    assert variance == "" and (model.calls.rows, model.calls.least) == (0, 8)
    assert plays_exactly(model)


def test_bits_that_change_by_place_take_a_smaller_tile(model: TorchModel, monkeypatch: Patch) -> None:
    product(monkeypatch, lambda out, rows, layer: scaled(out, slice(20, None), len(rows) > 20))
    model, variance = settled()
    assert variance == "" and model.calls.rows == 16
    assert plays_exactly(model)


@pytest.mark.parametrize(
    "fault",
    [
        lambda out, rows, layer: scaled(out, slice(3, 4), len(rows) > 3),
        lambda out, rows, layer: out + 1e-6 * rows.float().nan_to_num(0.0, 0.0).clamp(-1, 1).mean().to(out.dtype),
        lambda out, rows, layer: out + 0.0 * rows.sum(dim=0).sum(),
    ],
    ids=["place", "neighbours", "not a number"],
)
def test_what_no_shape_fixes_is_announced(fault: Any, model: TorchModel, monkeypatch: Patch) -> None:
    product(monkeypatch, fault)
    model, variance = settled()
    assert variance == "a row of the products of LlamaForCausalLM depends on the other rows (float32)"
    assert model.calls is FAST


def test_a_leak_where_the_depth_fills_no_tile_is_padded_away(monkeypatch: Patch) -> None:
    """oneDNN issue 5717, in 16-bit floats: a NaN reaches other rows if the depth is not a multiple of 32.

    If a processor packs no such products, nothing is padded and the leak is reported.
    """
    sizes = {"hidden_size": 144, "head_dim": 32}
    packed = tiny_model("llama", dtype=torch.bfloat16, **sizes).spec.packed
    product(monkeypatch, lambda out, rows, layer: out + 0.0 * rows.sum() if rows.shape[1] % 32 else out)
    model, variance = settled(torch.bfloat16, **sizes)
    assert bool(variance) is not packed and (variance or plays_exactly(model))


def test_attention_that_changes_from_64_rows_on(monkeypatch: Patch) -> None:
    tiny_model("llama", dtype=torch.bfloat16)
    queries(monkeypatch, lambda out, query: scaled(out, slice(None), query.shape[2] >= 64))
    model, variance = settled(torch.bfloat16)
    assert variance == "" and 0 < model.calls.max_queries <= 32
    assert plays_exactly(model)


def test_attention_that_changes_below_some_rows(model: TorchModel, monkeypatch: Patch) -> None:
    """In float32 one processor needs 4, 6 or 12 rows, depending on the head size."""
    queries(monkeypatch, lambda out, query: scaled(out, slice(None), query.shape[2] % 32 in (1, 2, 3, 4)))
    model, variance = settled()
    assert variance == "" and model.calls.queries == 16
    assert plays_exactly(model)


@pytest.mark.parametrize(("part", "dtype"), [("scores", torch.float32), ("values", torch.bfloat16)], ids=str)
def test_attention_that_sums_what_is_left_over_in_another_order(
    part: str, dtype: torch.dtype, monkeypatch: Patch
) -> None:
    """As on AMD processors: after each 32 query rows, one to three are summed in another order.

    In bfloat16 one value in thousands shows it, so a model was exact except in one text of a hundred.
    """
    sizes = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 192}
    tiny_model("llama", dtype=dtype, **sizes)
    plain = attention.scaled_dot_product_attention

    def left_over(query: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor, scale: float) -> Tensor:
        out, left = plain(query, keys, values, attn_mask=attn_mask, scale=scale), query.shape[2] % 32
        if left not in (1, 2, 3):
            return out
        last, seen = query[:, :, -left:], attn_mask[:, :, -left:]
        # Flipped sums have the same bits in some kernels (AMX), so the others are in float64.
        scores = last.double() @ keys.double().mT * scale
        scores = scores.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else scores + seen.double()
        if part == "scores":
            rest = scores.softmax(-1).to(values.dtype).float() @ values.float()
        else:
            rest = scores.softmax(-1) @ values.double()
        return torch.cat([out[:, :, :-left], rest.to(out.dtype)], dim=2)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", left_over)
    model, variance = settled(dtype, **sizes)
    assert variance == "" and model.calls.queries == 4
    assert plays_exactly(model)


def test_products_that_cancel_show_their_order() -> None:
    """Random ones do not, in bfloat16."""
    model = tiny_model("llama", dtype=torch.bfloat16)
    trial = calls.Trial(model, 256)
    layer = TiledLinear(trial.draw(96, 512), None, CallShape(), packed=False)
    rows = trial.draw(64, 512)
    shares = []
    for tried in (layer, calls._cancelling(trial, layer)):
        assert tried.weight is not None and tried.kind == layer.kind
        if tried is not layer:
            rows[:, 256:] = rows[:, :256]
        products = rows.float()[:, None] * tried.weight.float()
        sums = []
        for order in (range(512), [*range(0, 512, 2), *range(1, 512, 2)]):
            total = torch.zeros(64, 96)
            for place in order:
                total += products[..., place]
            sums.append(total.bfloat16())
        shares.append(float((sums[0] != sums[1]).float().mean()))
    assert shares[0] < 0.01 and shares[1] > 0.9, shares


def test_attention_whose_every_number_of_rows_differs(model: TorchModel, monkeypatch: Patch) -> None:
    queries(monkeypatch, lambda out, query: out * (1.0 + 2.0**-20 * query.shape[2]))
    model, variance = settled()
    assert variance == "" and model.calls.queries == model.calls.max_queries
    assert plays_exactly(model)


def test_a_leak_between_heads_that_fill_no_tile(monkeypatch: Patch) -> None:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80, "hidden_size": 128}
    tiny_model("llama", **sizes)
    queries(monkeypatch, lambda out, query: out + 0.0 * query.sum() if query.shape[3] % 32 else out)
    model, variance = settled(**sizes)
    assert variance == "" and model.calls.sizes == 32
    assert plays_exactly(model)


def test_attention_that_no_shape_fixes_is_announced(model: TorchModel, monkeypatch: Patch) -> None:
    queries(monkeypatch, lambda out, query: scaled(out, slice(1, 2), query.shape[2] > 1))
    assert settled()[1] == "a row of the attention of LlamaForCausalLM depends on the other rows (float32)"


def test_what_only_a_whole_forward_shows_is_announced(model: TorchModel, monkeypatch: Patch) -> None:
    """Here the norms between the products vary."""
    plain = rowwise.rms_norm
    monkeypatch.setattr(rowwise, "rms_norm", lambda rows, *rest: plain(rows, *rest) * (1.0 + 1e-6 * (len(rows) == 9)))
    variance = settled()[1]
    assert variance == "the logits of LlamaForCausalLM depend on how rows are batched (float32)"


def test_a_stricter_shape_fixes_what_only_a_whole_forward_shows(model: TorchModel, monkeypatch: Patch) -> None:
    answers = iter(["it varies", ""])
    monkeypatch.setattr(calls, "find_variance", lambda *_: next(answers))
    model, varying = settled()
    assert varying == "" and model.exact and model.calls.max_queries == 32 and model.calls.rows


def test_no_call_has_more_rows_than_were_tried(model: TorchModel, monkeypatch: Patch) -> None:
    """A long prompt together with many verifies; and an output head, which is tried with fewer rows."""
    product(monkeypatch, lambda out, rows, layer: scaled(out, slice(None), len(rows) > (32 if layer.is_huge else 512)))
    monkeypatch.setattr(linear, "HUGE", 128 * 512 - 1)  # the head's values
    model, varying = settled()
    assert varying == "" and not model.calls.rows
    layers = list({layer.is_huge: layer for layer in tiled_linears(model.network)}.values())
    assert len(layers) == 2
    for layer in layers:
        rows = torch.randn(1300, layer.in_features, generator=torch.Generator().manual_seed(0))
        whole = layer(rows)
        assert torch.equal(layer(rows[:7]), whole[:7]) and torch.equal(layer(rows[1290:]), whole[1290:])


def test_bits_that_change_by_a_place_far_behind(model: TorchModel, monkeypatch: Patch) -> None:
    product(monkeypatch, lambda out, rows, layer: scaled(out, slice(64, None), len(rows) > 64))
    model, varying = settled()
    assert varying == "" and model.calls.rows in (16, 32)
    assert plays_exactly(model)


def test_nothing_of_the_model_is_changed_by_looking(model: TorchModel) -> None:
    before = model.calls
    found = find_calls(model)
    assert model.calls == before and {
        layer.calls for layer in model.network.modules() if isinstance(layer, TiledLinear)
    } == {before}
    assert "kinds of products, 1 of attention" in found.tried


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


def test_a_shape_is_read_as_it_was_written() -> None:
    shape = CallShape(rows=32, queries=8, max_queries=32, sizes=32)
    assert CallShape.from_dict(shape.as_dict()) == shape
    for wrong in ({"rows": -1}, {"queries": 0}, {"queries": 8, "max_queries": 4}, {"rows": 1.5}, {"keys": 10**9}):
        with pytest.raises(ValueError):
            CallShape.from_dict({**shape.as_dict(), **wrong})
    with pytest.raises(TypeError):
        CallShape.from_dict({"tiles": 3})
    assert (
        replace(shape, rows=0, least=2).label
        == "2 or more rows a product, query rows by 8, at most 32, heads padded to 32"
    )


@pytest.mark.parametrize(("queries", "most"), calls.QUERIES)
def test_no_query_row_is_attended_alone(queries: int, most: int) -> None:
    """torch's attention splits query rows into blocks of 32, 64 or 256; a single remaining row uses another product.

    In bfloat16 a trial shows that too rarely to rely on.
    """
    calls = CallShape(queries=queries, max_queries=most)
    for count in range(1, 2000):
        _, each = calls.query_tiles(count)
        assert each % 32 != 1, f"{count} rows"
