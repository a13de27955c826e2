"""The variants that `codespec bench decode` tries on a GPU, on a machine without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codespec_lab.bench.decode import codespec_engine, llama_cpp
from codespec_lab.bench.decode.codespec_engine import OwnFamily, OwnModels
from codespec_lab.bench.decode.contest import GPU_DTYPES, Family, thread_counts
from codespec_lab.bench.decode.hugging_face import TransformersFamily, TransformersModels
from codespec_lab.bench.decode.llama_cpp import LlamaFamily, Original
from codespec_lab.bench.decode.scenario import _machine, _weights
from codespec_lab.bench.llama_server import Program

from codespec.api.config import EngineConfig
from codespec.backends.memory_plan import Need
from codespec.backends.torch import loader as torch_loader
from codespec.store.catalogue import find_entry
from codespec.store.resolve import ModelRef
from tests.backends.gguf.files import write_model

GPU = EngineConfig(device="cuda")


def write_gguf(folder: Path) -> str:
    file = folder / "a.gguf"
    file.write_bytes(b"GGUF")
    return str(file)


def test_native_is_tried_for_a_model_that_people_run_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModelRef:
        return ModelRef(name, "gguf" if name.endswith(".gguf") else "folder", Path(name), find_entry(name))

    monkeypatch.setattr(codespec_engine, "resolve", find)
    floats, own, file = ("float32", "bfloat16"), EngineConfig(), write_gguf(tmp_path)
    for config in (own, replace(own, target="smollm2-135m"), replace(own, target=file, device="cuda")):
        assert "native" not in (*OwnModels(config, 4).formats, *OwnModels(config, 4).drafter_formats)
    for target in (file, "qwen2.5-coder-0.5b-instruct"):
        models = OwnModels(replace(own, target=target), 4)
        assert models.formats == models.drafter_formats == (*floats, "native")
    configured = OwnModels(replace(own, dtype="native"), 4)
    assert configured.formats == (*floats, "native")
    drafting = OwnModels(replace(own, drafter=file), 4)
    assert (drafting.formats, drafting.drafter_formats) == (floats, (*floats, "native"))
    variants = [v for contestant in OwnFamily(configured).contestants for v in contestant.variants()]
    assert {(v.dtype, v.drafter_dtype) for v in variants} >= {
        ("native", "native"),
        ("native", "float32"),
        ("float32", ""),
    }


def test_formats_that_are_asked_for_are_the_only_ones() -> None:
    models = OwnModels(EngineConfig(), 4, "native")
    assert (models.formats, models.drafter_formats) == (("native",), ("float32", "bfloat16", "native"))
    assert OwnModels(EngineConfig(), 4, "native", "native").drafter_formats == ("native",)
    assert OwnModels(EngineConfig(drafter="none"), 4, "native").drafter_formats == ()
    transformers = TransformersFamily(TransformersModels(EngineConfig(dtype="native"), shared_vocabulary=False))
    assert {v.dtype for one in transformers.contestants for v in one.variants()} == {"float32", "bfloat16"}


def test_native_is_left_out_where_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codespec_engine, "has_native", lambda: False)
    assert OwnModels(EngineConfig(dtype="native"), 4).formats == ("float32", "bfloat16")


@pytest.mark.parametrize("architecture", ["llama", "starcoder2"])
def test_weights_are_named_the_same_whatever_was_converted_before(architecture: str, tmp_path: Path) -> None:
    """The first run converts the file to other formats; a later run continues its figures."""
    file = str(write_model(tmp_path / "m.gguf", architecture))
    config = EngineConfig(target=file, drafter="none")
    models, int8 = OwnModels(config, 4), OwnModels(config, 4, "native")
    first, rounded = _weights(models), _weights(int8)
    assert (_weights(models), _weights(int8)) == (first, rounded)
    assert first != rounded and first["drafter"] == "none"


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
    """The models load on the CPU in place of the GPU; a failed capture is reported."""
    made: list[tuple[Need, int]] = []

    def make_room(needs: list[Need], graph_rows: int, tell: object, notes: list[str]) -> None:
        for need in needs:
            need.model.allocate(need.slots, need.capacity, graph_rows)
            made.append((need, graph_rows))
            notes.append("it can't be captured")

    monkeypatch.setattr("codespec_lab.bench.decode.codespec_engine.make_room", make_room)
    monkeypatch.setattr(torch_loader, "find_device", lambda device: torch.device("cpu"))
    models = OwnModels(replace(GPU, graph_rows=24), 3)
    pair = models.pair(OwnFamily(models).contestants[1].variants()[0])
    assert [need.model for need, _ in made] == [pair.target, pair.drafter]
    assert {rows for _, rows in made} == {24} and models.notes == 2 * ["it can't be captured"]
    assert all(need.slots == 3 and need.rows >= need.slots * pair.context for need, _ in made)
