"""The oracle costs no more than any policy, and a plan costs as much as its replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from codespec_lab.bench.policy.heuristics import ConfidenceStopped
from codespec_lab.bench.policy.policies import Oracle, Planner
from codespec_lab.bench.steps import Prices
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.speculation.cost_model import CostTable
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftPolicy, FixedLength
from lab.tests.bench.policy.tiny import KINDS, recordings, replayed
from tests.speculation.sequences import forward, table

BARE: dict[str, Callable[[CostTable], DraftPolicy]] = {
    "off": lambda _: FixedLength(0),
    "fixed:2": lambda _: FixedLength(2),
    "fixed:16": lambda _: FixedLength(16),
    "confidence": lambda _: ConfidenceStopped(16, 0.2),
    "cost": lambda costs: CostPolicy(costs, ("suffix", "draft_model"), syntax=False),
}


def seconds(kind: str, policy: DraftPolicy, prices: Prices) -> float:
    return sum(prices.step(step) for step in replayed(kind, policy))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(row=st.floats(0.001, 0.5), unit=st.floats(0.001, 0.6), spelling=st.floats(0, 0.3))
def test_no_policy_is_cheaper(kind: str, row: float, unit: float, spelling: float) -> None:
    costs = CostTable(forward(1.0, row), {"draft_model": forward(unit, unit / 20)}, spelling)
    prices, planner = Prices(costs), Planner(Prices(costs))
    planned = sum(planner.plan(recording)[1] for recording in recordings(kind))
    played = seconds(kind, Oracle(planner, recordings(kind)), prices)
    assert played == pytest.approx(planned, rel=1e-9)
    for name, make in BARE.items():
        assert played <= seconds(kind, make(costs), prices) * (1 + 1e-9), name


@pytest.mark.parametrize("kind", KINDS)
def test_it_rejects_nothing_and_follows_the_prices(kind: str) -> None:
    free, dear = Prices(table(0.001, 0.001)), Prices(table(2.0, 2.0))
    rounds = [played for step in replayed(kind, Oracle(Planner(free), recordings(kind))) for played in step.rounds]
    assert sum(played.accepted for played in rounds) == sum(played.drafted for played in rounds) >= 20
    nothing = replayed(kind, Oracle(Planner(dear), recordings(kind)))
    assert all(played.drafted == 0 for step in nothing for played in step.rounds)
