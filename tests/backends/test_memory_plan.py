"""A model too large for a device is rejected before allocation, with the numbers and the setting that helps."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.config import SHIPPED
from codespec.backends import loader, memory_plan
from codespec.backends.memory_plan import Claim, Need, demand_room, free_memory, make_room, step_claims
from codespec.backends.torch import loader as torch_loader
from codespec.backends.torch.cuda.graphs import Progress
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from tests.tiny_models import tiny_model

MIB = 1 << 20


def need(model: TorchModel, slots: int = 2, capacity: int = 512, rows: int = 64, kept: int = 4) -> Need:
    return Need(model, slots, capacity, rows, kept)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=5), st.integers(0, 10**12))
def test_claims_that_fit_pass_and_others_name_the_largest(sizes: list[int], free: int) -> None:
    claims = [Claim(f"part {i}", size, f"lower setting_{i}") for i, size in enumerate(sizes)]
    demand_room(claims, None)
    if sum(sizes) <= free:
        demand_room(claims, free)
        return
    with pytest.raises(ModelError) as raised:
        demand_room(claims, free)
    message = str(raised.value)
    assert message.endswith(f"lower setting_{sizes.index(max(sizes))}.")
    assert f"{free / 1e9:.1f} GB of device memory is free, but {sum(sizes) / 1e9:.1f} GB is needed" in message
    assert all(f"part {i} {size / 1e9:.1f} GB" in message for i, size in enumerate(sizes))


def test_a_cpu_is_not_planned() -> None:
    assert free_memory(torch.device("cpu")) is None


def test_the_cache_is_planned_as_it_is_made() -> None:
    model = tiny_model("qwen2", steps="device")
    cache = step_claims(need(model, slots=3, capacity=700), graph_rows=0)[0]
    model.allocate(3, 700)
    assert model.cache is not None
    made = [t for kind in (model.cache.keys, model.cache.values) for t in kind.values()]
    assert cache.nbytes == sum(t.numel() * t.element_size() for t in made)
    assert "3 prompts of 1024 tokens" in cache.fix


def test_more_graphs_and_larger_steps_claim_more() -> None:
    model = tiny_model("llama")
    _, few, none = step_claims(need(model), graph_rows=0)
    _, many, graphs = step_claims(need(model, rows=4096, kept=512), graph_rows=128)
    assert none.nbytes == 0 < graphs.nbytes and few.nbytes < many.nbytes
    assert "graph_rows (128)" in graphs.fix


def test_weights_that_do_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loader, "free_memory", lambda device: MIB)
    monkeypatch.setattr(torch_loader, "_network", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=r"^0\.0 GB .* is needed \(weights of .*: choose a smaller model"):
        loader.load_model(str(SHIPPED / "target"), dtype="bfloat16")


def test_nothing_is_made_where_one_of_two_models_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = tiny_model("llama", steps="device"), tiny_model("gpt2", steps="device")
    needs = [need(target, slots=64, capacity=4096), need(drafter)]
    monkeypatch.setattr(memory_plan, "free_memory", lambda device: 64 * MIB)
    with pytest.raises(ModelError) as raised:
        make_room(needs, 128, lambda phase: None, [])
    assert re.search(r"cache of llama .* cache of gpt2 .*: lower .*max_batch", str(raised.value))
    assert target.cache is None and drafter.cache is None


def test_who_starts_hears_of_graphs_and_of_what_can_not_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(model: TorchModel, progress: Progress) -> str:
        progress(2, 42)
        return "a layer copies to the host" if model.spec.name == "gpt2" else ""

    monkeypatch.setattr(TorchModel, "capture", capture)
    target, drafter = tiny_model("llama", steps="device"), tiny_model("gpt2", steps="device")
    told: list[str] = []
    notes: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append("freed memory is given back"))
    make_room([need(target), need(drafter)], 128, told.append, notes)
    assert told.pop(0) == "freed memory is given back"
    assert told == ["capturing graph 3 of 42 of llama", "capturing graph 3 of 42 of gpt2"]
    assert len(notes) == 1 and "gpt2" in notes[0] and "a layer copies to the host" in notes[0]
    assert target.cache is not None and drafter.cache is not None
