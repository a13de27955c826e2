"""The sampling benchmark on a tiny pair: every way of drafting is measured, with the expected relations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench import sampling
from codespec_lab.bench.sampling import leave_one_out, mismatches, report, run_sampling_bench
from codespec_lab.bench.settings import SamplingBench
from codespec_lab.bench.sites import Site

from codespec.contract.engine_config import EngineConfig
from codespec.errors import ConfigError
from codespec.store.processor import processor
from tests.cli.conftest import Command, Models, command, models, plain_environment
from tests.engine.test_planted_faults import correction_dropped
from tests.kin import cousin, sibling
from tests.pairs import model, prompts

__all__ = ["command", "models", "plain_environment"]


def test_rows_and_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a drafter close to the target, rejection accepts most; it needs a shared vocabulary."""
    loaded = iter([model("llama", "bytes"), sibling("llama", "bytes", noise=0.05), cousin("llama")])
    monkeypatch.setattr(sampling, "load_model", lambda *_, **__: next(loaded))
    monkeypatch.setattr(sampling, "leave_one_out", lambda part: part)
    monkeypatch.setattr(sampling, "stdlib_sites", lambda count: [Site(prefix) for prefix in prompts(count)])
    bench = SamplingBench(EngineConfig(), limit=4, tokens=16, temperatures=(1.0,))
    found = run_sampling_bench(bench)
    rows: list[dict[str, Any]] = found["rows"]
    assert [row["way"] for row in rows] == ["own noise", "greedy", "rejection", "own noise", "greedy"]
    accepted = {row["way"]: row["accepted_per_round"] for row in rows[:3]}
    assert accepted["rejection"] > accepted["greedy"] and accepted["own noise"] > accepted["greedy"]
    assert all(row["times_plain"] > 0 and row["tokens"] > 30 for row in rows)
    assert len(report(found)) == 3 + len(rows) and found["processor"] == processor().label == report(found)[1]
    assert found["exact"] and [row["equal"] for row in rows] == [4, 4, None, 4, 4] and not mismatches(found)
    rows[0]["equal"] = 3
    assert mismatches(found) == ["own noise at temperature 1.0, drafter itself without a layer: 1 of 4 texts"]
    assert not mismatches({**found, "exact": False}) and "near-ties may differ" in report({**found, "exact": False})[2]


def test_a_wrong_text_is_an_error(
    models: Models, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run from the command line at one temperature; in the second run a rejected token is committed."""
    whole = sampling.SCENARIO
    one = replace(whole, run=lambda bench: whole.run(replace(bench, temperatures=(0.8,))))
    monkeypatch.setattr(sampling, "SCENARIO", one)
    out = tmp_path / "sampling.json"
    words = ["bench", "sampling", *models.flags, "--limit", "1", "--max-tokens", "8", "--json", out]
    done = command(*words)
    assert done.code == 0 and json.loads(out.read_text(encoding="utf-8"))["exact"], done.err
    correction_dropped(monkeypatch)
    out.unlink()
    wrong = command(*words)
    assert wrong.code == 1 and out.exists(), wrong.err
    said = wrong.err.splitlines()[-1]
    assert said.startswith("codespec: A text differs from plain decoding, which exact mode rules out (")
    assert said.endswith("report it with the output of `codespec doctor`.") and " at temperature " in said


def test_a_layer_less() -> None:
    part = sibling("llama", "bytes", twin=7)
    blocks = list(part.network.blocks)  # type: ignore[arg-type]
    assert list(leave_one_out(part).network.blocks) == blocks[1:]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no separate layers"):
        leave_one_out(model("gpt2", "gpt2"))
