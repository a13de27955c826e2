"""What may be of no use is looked at as often as it pays, else within a small share of the time; never not at all."""

from __future__ import annotations

from codespec.control.cost_rule import CostRule
from codespec.control.costs import CostTable
from codespec.sequence import Candidates, Sequence
from tests.control.sequences import drafted, forward, grow, sequence, verdict


def endless(count: int) -> list[Sequence]:
    """Texts that go on; no text's own stake stops a draft."""
    batch = [sequence(max_tokens=10_000) for _ in range(count)]
    for made in batch:
        made.outlook.lost = -8.0
        made.outlook.read_by["draft_model"] = len(made.ids)
    return batch


def searches(right: int, rounds: int = 300) -> tuple[float, set[int]]:
    """Searches a round of 16 texts on a quick target, of which each finds something; and who searched at the end."""
    costs = CostTable(forward(1e-3, 1e-5))
    rule = CostRule(costs, ("suffix",), syntax=False)
    batch = [sequence(max_tokens=100 * rounds) for _ in range(16)]
    counts, late = 0, set()
    for turn in range(rounds):
        for made in batch:
            made.outlook.lost = -8.0  # no text's own stake stops it
        caps = rule.caps(batch)
        asked = [cap.tokens > 0 for cap in caps]
        kept = rule.trim(batch, [drafted("suffix", 2, 0.5) if ask else Candidates() for ask in asked])
        for made, found in zip(batch, kept, strict=True):
            judged = verdict(found, right * bool(found.ids or found.left_out))
            grow(made, judged)
            rule.observe(made, found, judged)
        if turn >= rounds // 2:
            counts += sum(asked)
            late |= {n for n, ask in enumerate(asked) if ask}
    return counts / (rounds - rounds // 2), late


def test_a_batch_whose_searches_bring_nothing_searches_now_and_then_and_everywhere() -> None:
    """Else finding nothing in 16 texts takes a tenth of a small target's step."""
    few, everybody = searches(right=0)
    assert 0.0 < few < 2.0 and everybody == set(range(16)), "in turn, so that nobody is overlooked"


def test_searches_that_bring_something_are_not_counted() -> None:
    assert searches(right=2)[0] == 16.0


def weighed(rule: CostRule, batch: list[Sequence], luck: float) -> set[int]:
    """Who is weighed in a round that drafts nothing, all texts having had so much luck."""
    for made in batch:
        made.outlook.luck["draft_model"] = luck
    rule.caps(batch)
    found = {n for n, made in enumerate(batch) if "draft_model" in made.outlook.gains}
    rule.trim(batch, [Candidates()] * len(batch))
    for made in batch:
        rule.observe(made, Candidates(), verdict(Candidates(), 0))
    return found


def test_a_drafter_that_gains_nothing_is_weighed_now_and_then_and_everywhere_and_a_good_one_always() -> None:
    """Else weighing it in 16 texts takes a twentieth of a small target's step (bench/LOG.md)."""
    costs = CostTable(forward(1e-3, 1e-5), {"draft_model": forward(6e-4, 1e-5)})
    rule, batch = CostRule(costs, ("draft_model",), syntax=False), endless(16)
    poor = [weighed(rule, batch, luck=-3.0) for _ in range(1200)]
    late = poor[400:]
    assert sum(map(len, late)) < 0.3 * len(late), "a share of the time"
    assert set().union(*late) == set(range(16)), "in turn"
    good = [weighed(rule, batch, luck=3.0) for _ in range(200)]
    assert all(len(found) == 16 for found in good[-20:]), "one gain is enough to look again"
