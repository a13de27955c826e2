"""The cost policy drafts only if it pays, disables nothing permanently, and can explain every decision."""

from __future__ import annotations

import pytest

from codespec.sequence import Candidates, Cap
from codespec.speculation import cost_policy
from codespec.speculation.acceptance_model import AcceptanceModel
from codespec.speculation.cost_model import CostTable, best_lengths
from codespec.speculation.cost_policy import TEXT, CostPolicy
from codespec.speculation.policy import StepResults
from tests.speculation.sequences import drafted, grow, sequence, table, verdict

CHAIN = ("suffix", "draft_model")


def play(
    rule: CostPolicy,
    rounds: int,
    right: int,
    *,
    source: str = "suffix",
    confidence: float = 0.9,
    context: str = "unknown",
) -> list[int]:
    """Run rounds of one text whose drafts are right for `right` tokens; return the verified lengths."""
    made = sequence(context, "python", max_tokens=10 * rounds + 100)
    lengths = []
    for _ in range(rounds):
        plan = rule.plan([made])
        (cap,) = plan.caps
        own = cap.of("suffix")
        found = Candidates()
        if own.tokens and own.goes_on((0.9,)):
            found = drafted("suffix")
        (kept,) = plan.trim([found])
        judged = verdict(kept, right)
        grow(made, judged)
        rule.observe(StepResults([(made, kept, judged)]))
        lengths.append(len(kept.ids))
    return lengths


def test_right_drafts_are_verified_whole_and_wrong_ones_not_at_all() -> None:
    assert play(CostPolicy(table(), ("suffix",)), 60, right=8)[-20:] == [8] * 20
    assert sum(play(CostPolicy(table(), ("suffix",)), 200, right=0)[40:]) == 0


def test_a_dear_row_shortens_drafts() -> None:
    """Drafts are right for exactly three tokens: the fourth is not worth an expensive row."""
    lengths = {row: play(CostPolicy(table(row), ("suffix",)), 300, right=3)[-50:] for row in (0.0, 0.1, 2.0)}
    assert set(lengths[0.0]) == {8} and set(lengths[0.1]) == {3} and set(lengths[2.0]) == {0}


def test_a_rule_that_ignores_costs_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cost_policy, "best_lengths", lambda survivals, seconds, price: best_lengths(survivals, lambda rows: 0.0, price)
    )
    with pytest.raises(AssertionError):
        test_a_dear_row_shortens_drafts()


def test_a_table_that_was_measured_at_a_bad_moment_is_fixed() -> None:
    """The steps correct it: prefills show the cost of many rows, and drafts that of few."""
    wrong, truth, kept = table(2.0), table(0.0), list[CostTable]()
    rule = CostPolicy(wrong, ("suffix",), running=True, keep_costs=kept.append)
    reads = sequence(length=64)
    reads.cached, reads.feed = 0, 64
    for turn in range(200):
        made = sequence(max_tokens=1000)
        plan = rule.plan([reads if turn % 4 == 0 else made])
        plan.trim([Candidates()])
        rule.observe(StepResults([], 0.0, truth.target.seconds(reads.feed if turn % 4 == 0 else 1)))
    assert play(rule, 60, right=8)[-20:] == [8] * 20 and sum(play(CostPolicy(wrong, ("suffix",)), 60, right=8)) == 0
    rule.close()
    assert kept[0].target.seconds(2) < 0.5 * wrong.target.seconds(2), "the next start begins with it"


def test_what_was_trimmed_is_judged_by_the_next_token() -> None:
    """Length zero is no dead end for a lookup: its first token is compared without a row."""
    rule = CostPolicy(table(0.4), ("suffix",))
    assert play(rule, 150, right=0)[-1] == 0
    assert play(rule, 300, right=8)[-1] == 8


def test_a_drafter_that_costs_more_than_it_brings_is_left_alone() -> None:
    for unit, asked in ((0.05, True), (3.0, False)):
        rule = CostPolicy(table(0.1, unit), CHAIN)
        made = sequence()
        made.outlook.read_by["draft_model"] = len(made.ids)
        plan = rule.plan([made])
        (cap,) = plan.caps
        assert bool(cap.of("draft_model").tokens) == asked
        assert cap.of("suffix").tokens == 16


def test_reading_a_long_prompt_is_a_cost() -> None:
    """The same drafter on the same text: not worth a prefill of 400 tokens for two more tokens, worth it for 500."""
    rule = CostPolicy(table(0.1, 0.1), CHAIN)
    tokens = {n: rule.plan([sequence(length=400, max_tokens=n)]).caps[0].of("draft_model").tokens for n in (3, 500)}
    assert tokens[3] == 0 < tokens[500]


def test_an_unsure_drafter_stops() -> None:
    rule = CostPolicy(table(0.1, 0.2), CHAIN)
    made = sequence("closing", "python")
    made.outlook.read_by["draft_model"] = len(made.ids)
    cap = rule.plan([made]).caps[0].of("draft_model")
    assert cap.goes_on([0.99]) and cap.goes_on([0.99, 0.99]) and not cap.goes_on([0.05])
    assert not cap.goes_on([0.5] * 6)


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_drafts_may_be_short(longest: int) -> None:
    made = sequence()
    made.outlook.read_by["draft_model"], made.outlook.lost = len(made.ids), -8.0
    cap = CostPolicy(table(0.1, 0.05), CHAIN, tokens=longest).plan([made]).caps[0].of("draft_model")
    assert cap.tokens == longest and cap.goes_on([0.99])


def test_a_poor_lookup_makes_way_for_a_good_drafter() -> None:
    survival = AcceptanceModel()
    for _ in range(100):
        survival.learn("draft_model", "", [0.9] * 4, 4)
        survival.learn("suffix", "", [0.4], 0)
        survival.learn("suffix", "", [0.9] * 8, 8)
    rule = CostPolicy(table(0.1, 0.05), CHAIN, syntax=False, acceptance=survival)
    made = sequence()
    made.outlook.read_by["draft_model"] = len(made.ids)
    cap = rule.plan([made]).caps[0].of("suffix")
    assert cap.goes_on((0.95,)) and not cap.goes_on((0.4,))


def test_zero_is_tried_again_within_a_budget() -> None:
    """A drafter that never pays is tried occasionally, at a cost near a hundredth of the time."""
    rule = CostPolicy(table(0.1, 0.5), ("draft_model",))
    asked, made = 0, sequence()
    for turn in range(3000):
        made = made if turn % 100 else sequence(max_tokens=1000)
        plan = rule.plan([made])
        (cap,) = plan.caps
        found = drafted("draft_model", 1) if cap.tokens else Candidates()
        (kept,) = plan.trim([found])
        asked += bool(found.ids)
        judged = verdict(kept, 0)
        grow(made, judged)
        rule.observe(StepResults([(made, kept, judged)]))
    assert 3 <= asked <= 3000 * 0.02 / 0.5


def test_nothing_is_asked_where_there_is_no_room() -> None:
    made = sequence()
    made.room = 0
    assert CostPolicy(table(), ("suffix",)).plan([made]).caps == [Cap(0)]


def test_a_context_sets_the_length_and_only_where_syntax_is_followed() -> None:
    acceptance = AcceptanceModel()
    for _ in range(60):
        acceptance.learn("draft_model", "closing", [0.5], 1)
        acceptance.learn("draft_model", "string", [0.5], 0)

    def asked(context: str, syntax: bool) -> int:
        made = sequence(context, "python")
        made.outlook.read_by["draft_model"] = len(made.ids)
        policy = CostPolicy(table(0.1, 0.32), CHAIN, syntax=syntax, acceptance=acceptance)
        return policy.plan([made]).caps[0].of("draft_model").tokens

    assert asked("closing", True) > asked("string", True) == 0
    assert asked("closing", False) == asked("string", False)


def test_across_a_batch_the_likelier_rows_go_first() -> None:
    survival = AcceptanceModel()
    for _ in range(100):
        survival.learn("suffix", "closing", [0.9] * 8, 8)
        survival.learn("suffix", "string", [0.9] * 8, 1)
    rule = CostPolicy(table(0.3), ("suffix",), acceptance=survival)
    sequences = [sequence("string", "python"), sequence("closing", "python"), sequence("string", "python")]
    for made in sequences:
        made.outlook.lost = -8.0  # a text whose drafts were accepted
    plan = rule.plan(sequences)
    kept = plan.trim([drafted("suffix"), drafted("suffix"), Candidates()])
    assert len(kept[1].ids) > len(kept[0].ids) and kept[2].ids == ()
    assert all(len(k.ids) + len(k.left_out) == 8 for k in kept[:2])


def test_decisions_are_explained_to_those_who_listen() -> None:
    rule = CostPolicy(table(0.3), ("suffix",))
    play(rule, 30, right=2, context="arguments")
    made = sequence("arguments", "python")
    made.listening = True
    made.outlook.lost = TEXT - 0.5
    plan = rule.plan([made])
    (kept,) = plan.trim([drafted("suffix")])
    assert (
        len(kept.ids) == 1
        and kept.reason.startswith("arguments: suffix 0.")
        and f"→ {len(kept.ids)}; a longer one" in kept.reason
    )
    assert "(n=" in kept.reason
    (none,) = plan.trim([Candidates()])
    assert "→ 0; nothing found" in none.reason


def test_what_was_learned_is_kept_at_the_end() -> None:
    kept: list[AcceptanceModel] = []
    rule = CostPolicy(table(), ("suffix",), keep=kept.append)
    play(rule, 3, right=8)
    rule.close()
    assert kept == [rule.acceptance]
