"""The sampling benchmark on a tiny pair: every way is measured, and what is known of them holds."""

from __future__ import annotations

from typing import Any

import pytest

from codespec.bench import sampling
from codespec.bench.prompts import BenchPrompt
from codespec.bench.sampling import SamplingBench, leave_one_out, report, run_sampling_bench
from codespec.config import EngineConfig
from codespec.errors import ConfigError
from tests.kin import cousin, sibling
from tests.pairs import model, prompts


def test_rows_and_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a drafter of its kin, rejection keeps more than greedy drafts; two vocabularies have no such row."""
    loaded = iter([model("llama", "bytes"), sibling("llama", "bytes", noise=0.05), cousin("llama")])
    monkeypatch.setattr(sampling, "load_model", lambda *_, **__: next(loaded))
    monkeypatch.setattr(sampling, "leave_one_out", lambda part: part)
    bench = SamplingBench(
        EngineConfig(), [BenchPrompt(prefix) for prefix in prompts(4)], tokens=16, temperatures=(1.0,)
    )
    found = run_sampling_bench(bench)
    rows: list[dict[str, Any]] = found["rows"]
    assert [row["way"] for row in rows] == ["own luck", "greedy", "rejection", "own luck", "greedy"]
    accepted = {row["way"]: row["accepted_per_round"] for row in rows[:3]}
    assert accepted["rejection"] > accepted["greedy"] and accepted["own luck"] > accepted["greedy"]
    assert all(row["times_plain"] > 0 and row["tokens"] > 30 for row in rows)
    assert len(report(found)) == 2 + len(rows)


def test_a_layer_less() -> None:
    part = sibling("llama", "bytes", twin=7)
    blocks = list(part.network.blocks)  # type: ignore[arg-type]
    assert list(leave_one_out(part).network.blocks) == blocks[1:]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no layers that can be told apart"):
        leave_one_out(model("gpt2", "gpt2"))
