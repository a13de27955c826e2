"""`codespec bench step`: what a step must read, ratios within a sweep, and one real run on a small shape."""

from __future__ import annotations

from statistics import median

import pytest
import torch

from codespec.bench.step import StepBench, Sweeps, run_step_bench
from codespec.bench.step_network import random_model, step_bytes
from codespec.bench.step_report import charts, report
from codespec.config import resolve
from codespec.models.shapes import SHAPES, Shape
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import model

SMALL = Shape("small", 64, 2, 4 * 16, 2 * 16, 96, 700, tied=False, head=16)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return model("llama", "bytes").tokenizer


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Shape:
    monkeypatch.setitem(SHAPES, SMALL.name, SMALL)
    return SMALL


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_every_weight_but_the_embedding(tokenizer: TextTokenizer, tied: bool) -> None:
    shape = Shape("one", 64, 2, 4 * 16, 2 * 16, 96, 700, tied=tied, head=16)
    model = random_model(shape, tokenizer, device="cpu", dtype="bfloat16", exact=True)
    norms, embedding = (2 * 2 + 1) * 64, 0 if tied else 700 * 64
    assert step_bytes(model, shape, 3, 0) == 2 * (model.spec.parameters - norms - embedding)
    model.allocate(3, 100)
    assert model.cache is not None
    kept = step_bytes(model, shape, 3, model.cache.capacity) - step_bytes(model, shape, 3, 0)
    assert kept == model.cache.nbytes


def test_ratios_are_made_within_a_sweep() -> None:
    one, eight = ("float32", (1, 1, 64)), ("float32", (8, 1, 64))
    sweeps = Sweeps({one: [1.0, 4.0, 2.0], eight: [1.5, 4.0, 3.0]}, [10.0, 20.0, 10.0])
    assert median(sweeps.ratio(eight, one)) == 1.5, "the ratio of the medians would be another"
    assert sweeps.floors(one, 20) == [2.0, 0.25, 1.0]


def test_a_small_run(small: Shape) -> None:
    config = resolve({"threads": 1})
    bench = StepBench(config, small.name, widths=(1, 3), batches=(1, 2), contexts=(16,), sweeps=2, grid=True)
    told: list[str] = []
    found = run_step_bench(bench, told.append)
    cells = {(row["dtype"], row["batch"], row["width"]): row for row in found["rows"]}
    assert set(cells) == {(kind, batch, width) for kind in bench.dtypes for batch in (1, 2) for width in (1, 3)}
    assert all(row["over_one"] == 1.0 for (_, batch, width), row in cells.items() if batch == width == 1)
    assert all(row["of_bandwidth"] > 0.0 and row["ms"] > 0.0 for row in cells.values())
    assert found["drafter"]["name"] == "drafter", "no path of this machine"
    assert len(told) == 3
    assert len(report(found)) == 3 + len(cells) + len(found["notes"])
    assert len(charts(found)) == 4


def test_the_network_is_seeded(tokenizer: TextTokenizer) -> None:
    first, second = (random_model(SMALL, tokenizer, device="cpu", dtype="float32", exact=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True))
    assert any(bool(parameter.any()) for parameter in first.network.parameters())
