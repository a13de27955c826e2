"""The pair that the benchmarks measure, in native bits."""

from __future__ import annotations

from codespec_lab.bench.pair import load_pair

from codespec.api.config import EngineConfig
from tests.cli.conftest import Models, models

__all__ = ["models"]


def test_a_native_pair(models: Models) -> None:
    config = EngineConfig(
        target=str(models.target), drafter=str(models.drafter), dtype="native", drafter_dtype="native"
    )
    pair = load_pair(config, batch=2, longest=4)
    assert {role: facts["dtype"] for role, facts in pair.facts().items()} == {"target": "native", "drafter": "native"}
    assert pair.target.exact and not pair.shares_ids and len(pair.proposers(2)) == 2
