"""`codespec bench policy` for a GPU, on a machine without one: steps are captured as fake graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench.pair import Pair, load_pair
from codespec_lab.bench.policy import scenario as run
from codespec_lab.bench.policy.scenario import run_policy_bench
from codespec_lab.bench.settings import PolicyBench

from codespec.api.config import EngineConfig
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from tests.backends.cuda.fake_graphs import FakeRecorder, recorder
from tests.tiny_models import tiny_model
from tests.toy_tokenizers import toy_tokenizer

__all__ = ["recorder"]

GPU = EngineConfig(device="cuda", graph_rows=12, context=600)
BATCH, LONGEST = 3, 4


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Load tiny models with steps as on a device, and return the requested devices."""
    found: dict[str, str] = {}

    def load(name: str, *, device: str, **more: Any) -> TorchModel:
        found[name] = device
        return tiny_model("llama", toy_tokenizer("gpt2"), steps="device")

    for module in ("codespec_lab.bench.pair", "codespec.backends.loader"):  # the second module loads drafters
        monkeypatch.setattr(f"{module}.load_model", load)
    return found


def test_a_pair_has_slots_and_graphs_as_in_an_engine(asked: dict[str, str], recorder: FakeRecorder) -> None:
    """Steps are captured, and replayed."""
    pair = load_pair(GPU, BATCH, LONGEST)
    assert pair.drafter is not None and asked == {GPU.target: "cuda", GPU.drafter: "cuda"}
    for model in (pair.target, pair.drafter):
        assert model._runner is not None and model.captured and max(model._runner.buckets.rows) == GPU.graph_rows
        assert model.cache is not None and model.cache.slots == BATCH
    assert not pair.notes
    assert "graph" in recorder.heard  # the search for variance used them


def test_a_drafter_may_stand_beside_the_gpu(asked: dict[str, str], recorder: FakeRecorder) -> None:
    load_pair(replace(GPU, drafter_device="cpu", graph_rows=0), BATCH, LONGEST)
    assert asked == {GPU.target: "cuda", GPU.drafter: "cpu"}


def test_what_does_not_fit_is_told(
    asked: dict[str, str], recorder: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is planned as for an engine."""
    monkeypatch.setattr("codespec.backends.memory_plan.free_memory", lambda device: 1 << 20)
    with pytest.raises(ModelError, match=r"^0.0 GB of device memory is free, but .*: lower .*\.$"):
        load_pair(GPU, BATCH, LONGEST)


def test_the_report_says_what_could_not_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: EngineConfig, batch: int, longest: int) -> Pair:
        target = tiny_model("llama", toy_tokenizer("gpt2"))
        return Pair(target, None, 64, 0, ("no graphs", "no graphs", "few slots"))

    monkeypatch.setattr(run, "load_pair", load)
    monkeypatch.setattr(run, "_sites", lambda bench: ([], "few places"))
    monkeypatch.setattr(run, "record", lambda *_: ["a recording"])
    monkeypatch.setattr(run, "_prompt_facts", lambda *_: {})
    monkeypatch.setattr(run, "_section", lambda *_: {})
    found = run_policy_bench(PolicyBench(config=GPU, held_out=Path("none")))
    assert found["note"] == "few places; no graphs; few slots"
