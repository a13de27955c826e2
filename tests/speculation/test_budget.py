"""If no draft is accepted, drafting loses at most its budget, whatever was expected; accepted drafts soon lift the
limit.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.sequence import Candidates
from codespec.speculation import cost_policy as budget
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_model import CostTable, StepCost
from codespec.speculation.cost_policy import CostPolicy, Losses
from codespec.speculation.policy import StepResults
from tests.speculation.sequences import drafted, grow, sequence, table, verdict

CHAIN = ("suffix", "draft_model")
LENGTH = 128
SPELLING = st.sampled_from([0.0, 0.02, 0.1, 0.4])
ROWS, UNITS = st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]), st.sampled_from([0.01, 0.05, 0.3, 1.5])


def confident() -> AcceptanceModel:
    """Return a model trained on a pair whose every draft was right."""
    survival = AcceptanceModel()
    for source in CHAIN:
        for _ in range(100):
            survival.learn(source, "", [0.9] * 16, 16)
    return survival


def write(rule: CostPolicy, costs: CostTable, rounds: int, found: list[str], right: int = 0) -> tuple[float, int]:
    """Write one text whose rounds draft as much as allowed, cycling through the sources in `found`.

    Return the cost of drafting and rows in plain rounds, and the number of verified tokens.
    """
    made, spent, rows = sequence(max_tokens=10 * rounds + 100), 0.0, 0
    made.outlook.read_by["draft_model"] = 1000  # nothing to read
    for turn in range(rounds):
        plan = rule.plan([made])
        (cap,) = plan.caps
        source, draft = found[turn % len(found)], Candidates()
        own = cap.of(source)
        if own.tokens and own.goes_on((0.95,)):
            draft = drafted(source, own.tokens, 0.95)
            spent += own.tokens * costs.drafters[source].seconds(1) if source in costs.drafters else 0.0
            spent += costs.draft
        (kept,) = plan.trim([draft])
        spent += costs.target.seconds(1 + len(kept.ids)) - costs.target.seconds(1)
        rows += len(kept.ids)
        judged = verdict(kept, right)
        grow(made, judged)
        rule.observe(StepResults([(made, kept, judged)]))
    return spent, rows


@given(ROWS, UNITS, st.lists(st.sampled_from(CHAIN), min_size=1, max_size=5), st.booleans(), SPELLING)
def test_a_text_in_which_nothing_holds_loses_its_stake_and_no_more(
    row: float, unit: float, found: list[str], learned: bool, spelling: float
) -> None:
    costs = replace(table(row, unit), draft=spelling)
    rule = CostPolicy(costs, CHAIN, syntax=False, acceptance=confident() if learned else None)
    spent, _ = write(rule, costs, LENGTH, found)
    allowed = (budget.TEXT + budget.TEXT_SHARE * LENGTH) * 1.001
    assert spent <= allowed + spelling and allowed < 0.1 * LENGTH  # the last lookup may cost more than was left


@given(ROWS, UNITS, st.lists(st.sampled_from(CHAIN), min_size=1, max_size=5), SPELLING)
@settings(deadline=None, max_examples=10)
def test_nor_do_all_texts_together(row: float, unit: float, found: list[str], spelling: float) -> None:
    """Minutes of texts; each starts with full confidence."""
    costs, texts = replace(table(row, unit), draft=spelling), 24
    rule = CostPolicy(costs, CHAIN, syntax=False, acceptance=confident())
    spent = sum(write(rule, costs, LENGTH, found)[0] for _ in range(texts))
    allowed = (budget.BUDGET + (budget.SHARE + budget.EXPLORE) * LENGTH * texts) * 1.001
    assert spent <= allowed + spelling and allowed < 0.02 * LENGTH * texts


@given(ROWS, st.integers(2, 8), st.lists(st.sampled_from(CHAIN), min_size=1, max_size=5))
@settings(deadline=None, max_examples=15)
def test_nor_do_many_at_once(row: float, batch: int, found: list[str]) -> None:
    """Each text may lose the same share of its tokens as alone, so a batch loses the same share of its time."""
    costs = table(row, 0.01)
    rule = CostPolicy(costs, CHAIN, syntax=False, acceptance=confident())
    texts, spent = [sequence(max_tokens=1000) for _ in range(batch)], 0.0
    for text in texts:
        text.outlook.read_by["draft_model"] = 1000
    for turn in range(LENGTH):
        source = found[turn % len(found)]
        plan = rule.plan(texts)
        caps = [cap.of(source) for cap in plan.caps]
        own = [cap.tokens if cap.goes_on((0.95,)) else 0 for cap in caps]
        drafts = [drafted(source, tokens, 0.95) if tokens else Candidates() for tokens in own]
        kept = plan.trim(drafts)
        rows = batch + sum(len(one.ids) for one in kept)
        plain = costs.target.seconds(batch, batch)
        spent += (costs.target.seconds(rows, batch) - plain) / plain
        for text, one in zip(texts, kept, strict=True):
            grow(text, verdict(one, 0))
            rule.observe(StepResults([(text, one, verdict(one, 0))]))
    assert spent <= (budget.TEXT + budget.TEXT_SHARE * LENGTH) * 1.001
    losses = batch * spent  # in rounds of one text
    assert losses <= (budget.BUDGET + (budget.SHARE + budget.EXPLORE) * batch * LENGTH) * 1.001 + batch


def test_a_rule_without_a_stake_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BUDGET", 1000.0)
    monkeypatch.setattr(budget, "TEXT", 1000.0)
    costs = table(0.5, 0.3)
    spent, _ = write(CostPolicy(costs, CHAIN, syntax=False, acceptance=confident()), costs, LENGTH, ["suffix"])
    assert spent > budget.TEXT_SHARE * LENGTH + 2.0


def test_what_texts_win_pays_for_others() -> None:
    """At most as much again as the initial budget, however large the gain."""
    losses = Losses()
    assert losses.left == budget.BUDGET and losses.of_text(0.0, 0) == budget.TEXT
    losses.book(budget.BUDGET - 1.0)
    assert losses.left == 1.0 == losses.of_text(0.0, 0)
    losses.written = 300
    assert losses.left == 1.0 + 300 * budget.SHARE
    losses.book(-1000.0)
    assert losses.left == 2 * budget.BUDGET
    assert losses.of_text(-5.0, 100) == min(2 * budget.BUDGET, budget.TEXT + 100 * budget.TEXT_SHARE + 5.0)


@pytest.mark.parametrize("right", [8, 16])
def test_what_holds_is_soon_as_free_as_ever(right: int) -> None:
    """A few rounds of short drafts, then the longest."""
    costs = table(0.1, 0.3)
    rule = CostPolicy(costs, CHAIN, syntax=False, acceptance=confident())
    _, rows = write(rule, costs, 12, ["suffix"], right)
    assert rows >= 9 * right


def test_a_text_that_lost_all_is_asked_again_later() -> None:
    """Meanwhile not even a lookup is tokenized, since that costs too; each written token gives a little back."""
    rule, made = CostPolicy(table(0.1), ("suffix",), syntax=False), sequence(max_tokens=1000)
    made.outlook.lost = budget.TEXT + 10.5 * budget.TEXT_SHARE
    asked = []
    for _ in range(20):
        plan = rule.plan([made])
        (cap,) = plan.caps
        asked.append(bool(cap.tokens))
        (none,) = plan.trim([Candidates()])
        grow(made, verdict(none, 0))
        rule.observe(StepResults([(made, none, verdict(none, 0))]))
    assert asked == [False] * 11 + [True] * 9


def test_a_lookup_wins_by_being_judged_alone() -> None:
    """It gets no row, but its first token is compared with the target's choice."""
    costs = table(0.4, 0.3)
    rule = CostPolicy(costs, ("suffix",), syntax=False, acceptance=confident())
    made = sequence()
    made.outlook.lost = budget.TEXT + 1.0
    plan = rule.plan([made])
    (kept,) = plan.trim([drafted("suffix")])
    assert kept.ids == () and len(kept.left_out) == 8
    rule.observe(StepResults([(made, kept, verdict(kept, 8))]))
    assert made.outlook.lost == budget.TEXT


@given(st.integers(1, 8), st.floats(0, 20), st.floats(0, 0.5), st.lists(st.floats(0, 0.3), min_size=128, max_size=128))
@settings(deadline=None)
def test_what_is_affordable_is_the_longest_that_is(batch: int, rounds: float, unit: float, rises: list[float]) -> None:
    extra = tuple(sum(rises[:n]) for n in range(16 * batch + 1))
    step = StepCost(batch, 0, 1.5, 0.0, extra)
    count = step.affords(rounds, unit)
    assert 0 <= count <= 16
    cost = [step.rounds(extra[batch * n] / batch + n * unit) for n in range(17)]
    assert cost[count] <= rounds * (1 + 1e-9) or count == 0
    assert count == 16 or cost[count + 1] > rounds * (1 - 1e-9)
