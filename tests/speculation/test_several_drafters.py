"""Drafters that are paid per forward: a whole draft in one forward costs one, and the best of several is used."""

from __future__ import annotations

from dataclasses import replace

from codespec.sequence import Candidates
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_model import CostTable
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import StepResults
from tests.speculation.sequences import drafted, forward, grow, sequence, table, verdict

HEADS = ("eagle3", "dflash")


def two_heads(first: float, second: float, row: float = 0.005) -> CostTable:
    """Return costs: a token of the first takes `first` seconds, a whole draft of the second `second`."""
    drafters = {"eagle3": forward(first, 0.0), "dflash": forward(second, 0.0)}
    return replace(table(row), drafters=drafters, whole=("dflash",))


def taught(right: dict[str, int]) -> AcceptanceModel:
    """Return a model trained on 300 drafts of eight tokens, each right for this many tokens."""
    model = AcceptanceModel()
    for source, count in right.items():
        for _ in range(300):
            model.learn(source, "", (0.9,) * 8, count)
    return model


def asked(costs: CostTable, model: AcceptanceModel) -> dict[str, int]:
    """Return the caps of a decoding text."""
    rule = CostPolicy(costs, HEADS, syntax=False, acceptance=model)
    made = sequence()
    for source in HEADS:
        made.outlook.read_by[source] = len(made.ids)
    plan = rule.plan([made])
    (cap,) = plan.caps
    return {source: cap.of(source).tokens for source in HEADS}


def test_the_one_that_gains_most_is_asked_alone() -> None:
    alike = taught({"eagle3": 6, "dflash": 6})
    assert asked(two_heads(0.03, 0.03), alike)["eagle3"] == 0, "six forwards or one"
    assert asked(two_heads(0.03, 0.03), alike)["dflash"] > 1
    assert asked(two_heads(0.005, 0.6), alike)["dflash"] == 0
    better = taught({"eagle3": 7, "dflash": 1})
    caps = asked(two_heads(0.01, 0.05), better)
    assert caps["eagle3"] > 1 and caps["dflash"] == 0


def test_another_one_is_tried_now_and_then() -> None:
    rule = CostPolicy(two_heads(0.03, 0.03), HEADS, syntax=False, acceptance=taught({"eagle3": 6, "dflash": 6}))
    made, tried = sequence(max_tokens=20_000), 0
    for _ in range(1500):
        for source in HEADS:
            made.outlook.read_by[source] = len(made.ids)
        plan = rule.plan([made])
        (cap,) = plan.caps
        source = next((one for one in HEADS if cap.of(one).tokens), "")
        tried += source == "eagle3"
        found = drafted(source, min(8, cap.of(source).tokens)) if source else Candidates()
        (kept,) = plan.trim([found])
        judged = verdict(kept, min(6, len(kept.ids) + len(kept.left_out)))
        grow(made, judged)
        rule.observe(StepResults([(made, kept, judged)]))
    assert 0 < tried < 150


def test_a_whole_draft_is_paid_once() -> None:
    step = replace(two_heads(0.1, 0.1).step(1, 1, 0, 8), price=1.0)
    survival = [0.9] * 8
    assert step.gain(survival, token=0.1) < step.gain(survival, begin=0.1)
    lost = {}
    for source in HEADS:
        rule = CostPolicy(two_heads(0.05, 0.05), (source,), syntax=False, acceptance=taught({source: 6}))
        made = sequence()
        made.outlook.read_by[source] = len(made.ids)
        plan = rule.plan([made])
        plan.trim([drafted(source, 8)])
        lost[source] = made.outlook.lost
    assert lost["eagle3"] >= 8 * 0.05 and 0.05 <= lost["dflash"] < 0.15
