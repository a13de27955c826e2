"""What `codespec bench decode` tries on a GPU, asked without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codespec.bench.decode.contest import GPU_DTYPES, Family, thread_counts
from codespec.bench.decode.peers import llama_cpp
from codespec.bench.decode.peers.codespec_engine import OwnFamily, OwnModels
from codespec.bench.decode.peers.hugging_face import TransformersFamily, TransformersModels
from codespec.bench.decode.peers.llama_cpp import LlamaFamily, Original
from codespec.bench.decode.run import _machine
from codespec.bench.llama_server import Program
from codespec.config import EngineConfig
from codespec.models import loader
from codespec.models.memory_plan import Need

GPU = EngineConfig(device="cuda")


def test_a_gpu_has_formats_of_its_own_and_no_threads() -> None:
    families: list[Family] = [
        OwnFamily(OwnModels(GPU, 4)),
        TransformersFamily(TransformersModels(GPU, shared_vocabulary=False)),
    ]
    variants = [v for family in families for contestant in family.contestants for v in contestant.variants()]
    assert {v.dtype for v in variants} == set(GPU_DTYPES)
    assert {v.drafter_dtype for v in variants} == {"", *GPU_DTYPES}
    assert {v.threads for v in variants} == {1}
    assert 2 not in thread_counts("cuda:1")


def test_a_drafter_beside_the_gpu_has_the_cpus_formats() -> None:
    models = OwnModels(replace(GPU, drafter_device="cpu"), 4)
    drafting = OwnFamily(models).contestants[-1]
    assert {v.drafter_dtype for v in drafting.variants()} == {"float32", "bfloat16"}
    assert {v.dtype for v in drafting.variants()} == set(GPU_DTYPES)


@pytest.mark.parametrize("device,going", [("cpu", True), ("cuda", False)])
def test_llama_cpp_takes_part_beside_a_cpu_only(device: str, going: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "find_original", lambda name: Original(Path("a.gguf"), "Q8_0"))
    monkeypatch.setattr(llama_cpp, "find_program", lambda folder: Program(Path("llama-server"), "1"))
    family = LlamaFamily(EngineConfig(device=device), slots=4, room=8)
    assert bool(family.contestants) is going
    assert all("beside a CPU" in why for why in family.absent.values()) and bool(family.absent) is not going


def test_figures_of_two_gpus_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card called {device}")
    assert "gpu" not in _machine("cpu")
    assert _machine("cuda:0") != _machine("cuda:1") != _machine("cpu")


def test_codespecs_models_get_slots_and_graphs_as_in_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded on a CPU in place of the GPU; a capture that fails is told."""
    made: list[tuple[Need, int]] = []

    def make_room(needs: list[Need], graph_rows: int, tell: object, notes: list[str]) -> None:
        for need in needs:
            need.model.allocate(need.slots, need.capacity, graph_rows)
            made.append((need, graph_rows))
            notes.append("it can't be captured")

    monkeypatch.setattr("codespec.bench.decode.peers.codespec_engine.make_room", make_room)
    monkeypatch.setattr(loader, "find_device", lambda device: torch.device("cpu"))
    models = OwnModels(replace(GPU, graph_rows=24), 3)
    pair = models.pair(OwnFamily(models).contestants[1].variants()[0])
    assert [need.model for need, _ in made] == [pair.target, pair.drafter]
    assert {rows for _, rows in made} == {24} and models.notes == 2 * ["it can't be captured"]
    assert all(need.slots == 3 and need.rows >= need.slots * pair.context for need, _ in made)
