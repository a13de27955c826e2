"""Planted faults: the comparisons of the other tests and the start-up check must fail on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from codespec.backends.language_model import Rows
from codespec.backends.torch import attention
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.linear import TiledLinear
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import find_variance
from tests.backends.rounds import Replay, covering
from tests.backends.test_seam import eager_logits
from tests.tiny_models import tiny_model

Patch = pytest.MonkeyPatch
LENGTH = 120


def few_query_rows(patch: Patch) -> None:
    """Calls of attention with fewer than eight query rows use another kernel."""
    plain = attention.scaled_dot_product_attention

    def attend(query: Tensor, *rest: Any, **how: Any) -> Tensor:
        return plain(query, *rest, **how) * (1.0 + 1e-6 * (query.shape[2] < 8))

    patch.setattr(attention, "scaled_dot_product_attention", attend)
    eager = attention._eager
    patch.setattr(
        attention, "_eager", lambda *given: eager(*given) * (1.0 + 1e-6 * (given[4].stop - given[4].start < 8))
    )


def few_rows(patch: Patch) -> None:
    """Products of fewer than four rows do the same."""
    plain = TiledLinear.multiply
    patch.setattr(TiledLinear, "multiply", lambda self, rows: plain(self, rows) * (1.0 + 1e-6 * (len(rows) < 4)))


def depends_on_the_batch(patch: Patch) -> None:
    """Logits change slightly with the number of sequences."""
    plain = TorchModel.forward

    def leak(self: TorchModel, batch: Any, cached: bool = True) -> Tensor:
        return plain(self, batch, cached) + 1e-6 * len(batch)

    patch.setattr(TorchModel, "forward", leak)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("fault", [few_query_rows, few_rows, depends_on_the_batch])
def test_variance_is_found(fault: Callable[[Patch], None], architecture: str, monkeypatch: Patch) -> None:
    model = tiny_model(architecture)
    model.set_exact(False)  # any number of rows
    fault(monkeypatch)
    assert 0.0 < Replay(model, LENGTH).play(covering(LENGTH)) < 1e-4
    model.allocate(2, 64)
    message = find_variance(model)
    assert model.spec.architecture in message and "float32" in message


class KeepsOneTooMany(Replay):
    def _kept(self, rows: Rows, accepted: int) -> int:
        return min(rows.start + accepted + 1, rows.start + len(rows.ids), self.length)


class KeepsOneTooFew(Replay):
    """Rolls back one token too far, so the next ids are fed one position too early."""

    def _prepare(self, slot: int, move: Any, lengths: list[int]) -> tuple[Rows, int]:
        rows, accepted = super()._prepare(slot, move, lengths)
        return Rows(slot, max(0, rows.start - 1), rows.ids, rows.keep), accepted

    def _kept(self, rows: Rows, accepted: int) -> int:
        return rows.start + accepted + 1


@pytest.mark.parametrize("faulty", [KeepsOneTooMany, KeepsOneTooFew])
def test_a_rollback_off_by_one_shows(faulty: type[Replay]) -> None:
    assert faulty(tiny_model("llama"), LENGTH).play(covering(LENGTH)) > 1e-2


def never_overwrites(self: KVCache, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
    """Rejected rows are never overwritten."""
    end = start + keys.shape[1]
    free = (self.keys[layer][slot, :, start:end] == 0).all(-1).all(0)
    places = torch.arange(start, end)[free]
    self.keys[layer][slot, :, places] = keys[:, free]
    self.values[layer][slot, :, places] = values[:, free]


def drops_the_last(self: KVCache, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
    end = start + keys.shape[1] - 1
    self.keys[layer][slot, :, start:end] = keys[:, :-1]
    self.values[layer][slot, :, start:end] = values[:, :-1]


def writes_to_the_next_slot(self: KVCache, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
    end = start + keys.shape[1]
    self.keys[layer][(slot + start) % self.slots, :, start:end] = keys
    self.values[layer][slot, :, start:end] = values


@pytest.mark.parametrize("write", [never_overwrites, drops_the_last, writes_to_the_next_slot])
def test_stale_keys_and_values_show(write: Callable[..., None], monkeypatch: Patch) -> None:
    replay = Replay(tiny_model("llama"), LENGTH)
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "write", write)
        assert replay.play(covering(LENGTH)) > 1e-2


def without(dropped: str) -> Callable[..., Any]:
    """Return attention that ignores one of its arguments."""

    def blind(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **told: Any) -> Any:
        assert told.pop(dropped) is not None or dropped == "sliding_window"
        return attention.attend(module, query, key, value, mask, **told)

    return blind


@pytest.mark.parametrize(
    ("architecture", "dropped"),
    [("starcoder2", "sliding_window"), ("gemma3", "sliding_window"), ("gemma2", "softcap"), ("gpt_oss", "s_aux")],
)
def test_what_the_attention_is_told_matters(architecture: str, dropped: str) -> None:
    model = tiny_model(architecture)
    logits = eager_logits(architecture, LENGTH)
    assert Replay(model, LENGTH, logits).play(covering(LENGTH)) <= 1e-4
    AttentionInterface.register(attention.NAME, without(dropped))
    try:
        assert Replay(model, LENGTH, logits).play(covering(LENGTH)) > 1e-3
    finally:
        attention.register()


def test_a_row_beyond_the_end_is_not_dropped_in_silence() -> None:
    model = tiny_model("llama")
    model.allocate(1, 512)
    model.forward([Rows(0, 0, [1] * 512)])
    with pytest.raises(AssertionError):
        model.forward([Rows(0, 512, [1])])
