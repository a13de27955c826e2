"""`codespec bench proposers` on tiny models: every row, equal texts, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from codespec_lab.bench import proposers as bench_run
from codespec_lab.bench.pair import Pair
from codespec_lab.bench.proposers import OFF, mismatches, report, run_proposer_bench, with_sources
from codespec_lab.bench.settings import ProposerBench
from codespec_lab.bench.sites import Site

from codespec.contract.engine_config import EngineConfig
from codespec.speculation.cost_model import CostTable, ForwardCost, Point
from tests.pairs import CONTEXT, model, prompts
from tests.random_heads import random_head


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny pair with both kinds of heads, and eight prompts."""
    torch.set_num_threads(1)
    target, drafter = model("llama", "gpt2", twin=41), model("qwen3", "llama2", twin=41, exact=False)

    def load(config: EngineConfig, batch: int, longest: int, heads: Any) -> Pair:
        found = [random_head(target, "eagle3"), random_head(target, "dflash")]
        for head in found:
            target.tap(head.config.layers)
        target.allocate(batch, CONTEXT)
        drafter.allocate(batch, CONTEXT + 1)
        return Pair(target, drafter, CONTEXT, 0, heads=tuple(found))

    monkeypatch.setattr(bench_run, "load_pair", load)
    sites = [Site(prefix=text[-120:]) for text in prompts(8)]
    monkeypatch.setattr(bench_run, "mixed_sites", lambda held_out, given: (sites, "a note"))
    monkeypatch.setattr(bench_run, "TABLE_SECONDS", 0.2)


@pytest.mark.usefixtures("world")
def test_every_proposer_has_a_row_and_no_text_differs() -> None:
    bench = ProposerBench(EngineConfig(learn=False), heads=(Path("a"),), limit=4, tokens=12, concurrency=(1, 4))
    found = run_proposer_bench(bench)
    names = [row["row"] for row in found["rows"]]
    assert names == [OFF, "suffix", "eagle3", "dflash", "draft_model", "chain", "chain+eagle3", "chain+dflash"] * 2
    assert not mismatches(found)
    assert all(row["tokens"] == found["rows"][0]["tokens"] for row in found["rows"][:8])
    assert found["rows"][0]["times_off"] == 1.0 and not found["rows"][0]["accepted_a_round"]
    assert set(found["costs"]["drafters"]) == {"eagle3", "dflash", "draft_model"}
    assert tuple(found["costs"]["whole"]) == ("dflash",)
    lines = report(found)
    assert "a note" in lines and [line.split()[0] for line in lines[-8:]] == names[:8]
    found["rows"][3]["different"] = 2
    assert mismatches(found) == ["dflash, 1 at once: 2 texts"]


def test_a_row_knows_the_costs_of_its_own_sources_only() -> None:
    cost = ForwardCost.from_points([Point(1, 1, 64, 0.1), Point(2, 1, 64, 0.2)])
    table = CostTable(cost, {"eagle3": cost, "dflash": cost}, whole=("dflash",))
    assert with_sources(table, ("suffix", "eagle3")) == CostTable(cost, {"eagle3": cost})
    assert CostTable.from_dict(table.as_dict()) == table
