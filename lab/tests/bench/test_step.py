"""`codespec bench step`: the bytes of a step, ratios within a sweep, and one real run on a small shape."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from codespec_lab.bench import step_models as models
from codespec_lab.bench.settings import StepBench
from codespec_lab.bench.shapes import SHAPES, ModelSizes
from codespec_lab.bench.step import BUFFER, Key, Sweeps, report, run_step_bench, time_prompt
from codespec_lab.bench.step_models import random_model, shape_of, step_bytes

from codespec.backends.loader import load_model
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from codespec.store.choice import resolve_engine
from codespec.store.machine import processor
from codespec.text.tokenizer import TextTokenizer
from tests.backends.gguf.files import write_model
from tests.pairs import model

SMALL = ModelSizes("small", 64, 2, 4 * 16, 2 * 16, 96, 700, tied=False, head=16)


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake bandwidth: filling and reading the real buffer takes half a second."""
    monkeypatch.setitem(BUFFER, "cpu", 1 << 20)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return model("llama", "bytes").tokenizer


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModelSizes:
    monkeypatch.setitem(SHAPES, SMALL.name, SMALL)
    return SMALL


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_every_weight_but_the_embedding(tokenizer: TextTokenizer, tied: bool) -> None:
    shape = ModelSizes("one", 64, 2, 4 * 16, 2 * 16, 96, 700, tied=tied, head=16)
    model = random_model(shape, tokenizer, device="cpu", dtype="bfloat16", exact=True)
    norms, embedding = (2 * 2 + 1) * 64, 0 if tied else 700 * 64
    assert step_bytes(model, shape, 3, 0) == 2 * (model.spec.parameters - norms - embedding)
    model.allocate(3, 100)
    assert model.cache is not None
    kept = step_bytes(model, shape, 3, model.cache.capacity) - step_bytes(model, shape, 3, 0)
    assert kept == model.cache.nbytes


def test_ratios_are_made_within_a_sweep() -> None:
    one, eight = Key("float32", "exact", (1, 1, 64)), Key("float32", "exact", (8, 1, 64))
    sweeps = Sweeps({one: [1.0, 4.0, 2.0], eight: [1.5, 4.0, 3.0]}, [10.0, 20.0, 10.0])
    assert median(sweeps.ratio(eight, one)) == 1.5, "the ratio of the medians would be another"
    assert sweeps.floors(one, 20) == [2.0, 0.25, 1.0]


def small_bench(shape: ModelSizes, **settings: Any) -> StepBench:
    config = resolve_engine({"threads": 1, "prefill_chunk": 32, **settings})
    return StepBench(
        config, shape=shape.name, widths=(1, 3), batches=(1, 2), contexts=(16,), sweeps=2, grid=True, prompt=80
    )


def test_a_small_run(small: ModelSizes) -> None:
    bench = small_bench(small)
    told: list[str] = []
    found = run_step_bench(bench, told.append)
    cells = {(row["dtype"], row["batch"], row["width"]): row for row in found["rows"]}
    assert set(cells) == {(kind, batch, width) for kind in bench.dtypes for batch in (1, 2) for width in (1, 3)}
    assert all(row["over_one"] == 1.0 for (_, batch, width), row in cells.items() if batch == width == 1)
    # The share of the bandwidth is rounded; on a busy machine it is 0 for so small a model.
    assert all(row["of_bandwidth"] >= 0.0 and row["ms"] > 0.0 for row in cells.values())
    assert found["drafter"]["name"] == "drafter", "the file contains no path of this machine"
    assert len(told) == 4
    prompts = [(row["dtype"], row["rows"], row["chunk"]) for row in found["prompts"]]
    assert prompts == [(kind, 80, chunk) for kind in bench.dtypes for chunk in (80, 32)]
    for row in (*cells.values(), *found["prompts"]):
        low, high = row["over_fast_range"]
        assert 0.0 < low <= row["over_fast"] <= high
    assert found["processor"] == processor().label and json.loads(json.dumps(found)) == found


def test_a_model_that_is_here_is_measured_natively_too() -> None:
    """With `--target` or `--model` that model is measured; native reads about a quarter of float32's bytes."""
    config = resolve_engine({"threads": 1, "prefill_chunk": 32})
    kinds = ("float32", "native")
    bench = StepBench(config, dtypes=kinds, widths=(1, 3), batches=(1,), contexts=(16,), sweeps=1, prompt=0)
    found = run_step_bench(bench, lambda phase: None)
    assert (
        found["shape"] == "target" and found["weights"] == "its own" and "target, its own weights" in report(found)[0]
    )
    assert [(row["dtype"], row["width"]) for row in found["rows"]] == [(k, w) for k in kinds for w in (1, 3)]
    wide, narrow = (load_model(config.target, dtype=kind) for kind in kinds)
    shape = shape_of(config.target)
    assert 3.5 * step_bytes(narrow, shape, 1, 0) < step_bytes(wide, shape, 1, 0) < 4 * step_bytes(narrow, shape, 1, 0)
    assert shape.parameters == pytest.approx(wide.spec.parameters, rel=0.01)


def test_a_folder_without_sizes_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"no Llama-like model .*num_attention_heads"):
        shape_of(str(tmp_path))


def test_exact_and_fast_stand_side_by_side(small: ModelSizes) -> None:
    found = run_step_bench(small_bench(small, mode="fast"), lambda phase: None)
    assert found["mode"] == "fast" and all("over_fast" in row for row in found["rows"])
    lines = report(found)
    assert len(lines) == 4 + 8 + 4 + len(found["notes"]) and lines[1] == processor().label
    header = next(number for number, line in enumerate(lines) if line.endswith("exact over fast"))
    row = found["rows"][0]
    low, high = row["over_fast_range"]
    assert lines[header + 1].endswith(f"{row['over_fast']:.2f} ({low:.2f}–{high:.2f})")
    told = "\n".join(lines)
    assert "a prompt of 80 tokens in one forward, float32: " in told and "in chunks of 32, bfloat16: " in told


def test_modes_are_compared_within_a_sweep(small: ModelSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second sweep the machine is half as fast, and exact mode costs less."""
    seen: list[tuple[str, bool]] = []

    def pretend(model: TorchModel, shape: tuple[int, int, int]) -> float:
        if model.spec.name != f"random {small.name}":
            return 1.0
        seen.append((model.spec.dtype, not model.exact))
        own = [fast for dtype, fast in seen if dtype == model.spec.dtype]
        times, exact = (2.0, 1.1) if len(own) > 16 else (1.0, 1.5)
        return times * (1.0 if not model.exact else exact)

    monkeypatch.setattr("codespec_lab.bench.step.time_forward", pretend)
    found = run_step_bench(small_bench(small), lambda phase: None)
    assert all(row["over_fast"] == 1.3 and row["over_fast_range"] == [1.1, 1.5] for row in found["rows"])
    assert found["rows"][0]["ms"] == 1850.0, "the ratio of the medians would be another"
    order = [fast for dtype, fast in seen if dtype == "bfloat16"]
    assert order[:4] == order[8:12] == [False, True, False, True], "a warm-up, and the first sweep"
    assert order[16:20] == [True, False, True, False], "in the second sweep fast comes first"


def test_a_model_that_varies_is_measured_in_fast_mode_alone(small: ModelSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_variance", lambda model, _: "it varies" if model.spec.dtype == "bfloat16" else "")
    found = run_step_bench(small_bench(small), lambda phase: None)
    assert found["notes"][-1] == "bfloat16: exact mode does not hold here (it varies), so only fast is measured"
    for row in (*found["rows"], *found["prompts"]):
        assert ("over_fast" in row) is (row["dtype"] == "float32") and row["ms"] > 0.0
    lines = report(found)
    assert any(line.startswith("bfloat16 ") and line.endswith("  -") for line in lines)
    monkeypatch.setattr(models, "find_variance", lambda *_: "it varies")
    found = run_step_bench(small_bench(small), lambda phase: None)
    assert not any("over_fast" in row for row in found["rows"]) and "exact over fast" not in "\n".join(report(found))


def test_a_prompt_is_timed_to_its_end() -> None:
    some = model("llama", "bytes")
    some.allocate(2, 128)
    assert time_prompt(some, 100, 32) > 0.0 and some.cache is not None and some.cache.lengths[0] == 100
    some.rollback(0, 0)


def test_the_network_is_seeded(tokenizer: TextTokenizer) -> None:
    first, second = (random_model(SMALL, tokenizer, device="cpu", dtype="float32", exact=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True))
    assert any(bool(parameter.any()) for parameter in first.network.parameters())


def test_a_gguf_file_has_the_shape_of_its_settings(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", "qwen2", "Q8_0")
    assert (shape_of(str(file)).hidden, shape_of(str(file)).layers) == (64, 2)
