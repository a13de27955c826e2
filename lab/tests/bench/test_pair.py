"""The pair that the benchmarks measure, in int8."""

from __future__ import annotations

from codespec_lab.bench.pair import load_pair

from codespec.contract.engine_config import EngineConfig
from tests.cli.conftest import Models, models

__all__ = ["models"]


def test_a_pair_in_int8(models: Models) -> None:
    config = EngineConfig(target=str(models.target), drafter=str(models.drafter), dtype="int8", drafter_dtype="int8")
    pair = load_pair(config, batch=2, longest=4)
    assert {role: facts["dtype"] for role, facts in pair.facts().items()} == {"target": "int8", "drafter": "int8"}
    assert pair.target.exact and not pair.shares_ids and len(pair.proposers(2)) == 2
