"""What the bound is made of: counts of what held, seconds by a table, and the lengths that no others beat."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.bench.decode_bound import Kept, Played, best_bound, bound, count_kept, sum_kept
from codespec.bench.peers.contest import Played as PlayedRound
from codespec.bench.peers.contest import PlayedStep
from codespec.control.costs import CostTable, Curve, ForwardCost

TABLE = CostTable(
    ForwardCost((64,), (Curve((1, 2, 8, 32), (1.0, 1.1, 1.4, 4.0)),), Curve((1, 4), (0.0, 0.2))),
    {"draft_model": ForwardCost((64,), (Curve((1, 8), (0.2, 0.3)),))},
    retokenize=Curve((1, 8), (0.01, 0.03)),
)

PLAYED = st.builds(
    lambda source, drafted, accepted: PlayedRound(
        source if drafted else "", drafted, min(drafted, accepted), drafted + 1 if drafted else 0
    ),
    st.sampled_from(["suffix", "draft_model"]),
    st.integers(0, 16),
    st.integers(0, 16),
)
STEPS = st.lists(
    st.builds(PlayedStep, st.floats(10, 500), st.lists(PLAYED, min_size=1, max_size=4)), min_size=1, max_size=12
)


@given(STEPS, st.integers(1, 8))
def test_no_pair_of_lengths_beats_the_bound(steps: list[PlayedStep], batch: int) -> None:
    counted, context = count_kept(steps), Played.of(steps, TABLE).context
    found = bound(counted, TABLE, batch, context)
    assert found.times_plain >= 1 - 1e-9
    for lengths in product(*((0, 1, 2, 4, 7, 11, 16) if source else (0,) for source in counted)):
        tokens = seconds = 0.0
        for (source, kept), length in zip(counted.items(), lengths, strict=True):
            text = kept.rounds + sum(kept.right)
            tokens += text
            rounds = text / (1 + sum(kept.right[:length]) / kept.rounds)
            seconds += rounds * _round_seconds(kept, source, length, batch, context)
        assert tokens / seconds <= found.tokens_per_second * (1 + 1e-6)


def _round_seconds(kept: Kept, source: str, length: int, batch: int, context: float) -> float:
    drafted = sum(kept.drafted[:length]) / kept.rounds
    more = TABLE.target.seconds(batch * (1 + drafted), batch, context) - TABLE.target.seconds(batch, batch, context)
    seconds = (TABLE.plain(batch, context) + more) / batch
    if length:
        seconds += TABLE.retokenize.at(batch) / batch
    if length and source in TABLE.drafters:
        units = drafted * kept.units / sum(kept.drafted)
        seconds += units * TABLE.drafters[source].seconds(batch, batch, context) / batch
    return seconds


@given(STEPS)
def test_rounds_survive_json_and_add_up(steps: list[PlayedStep]) -> None:
    parts = [json.loads(json.dumps(Played.of([step], TABLE).as_dict())) for step in steps]
    whole, added = Played.of(steps, TABLE), Played.sum_of(parts)
    assert added.modelled == pytest.approx(whole.modelled) and added.context == pytest.approx(whole.context)
    counts = [{source: asdict(kept) for source, kept in count_kept([step]).items()} for step in steps]
    assert sum_kept(json.loads(json.dumps(counts))) == count_kept(steps)


def test_what_was_not_drafted_costs_and_brings_nothing() -> None:
    drafts = [("suffix", 1, 1), ("suffix", 3, 1), ("suffix", 3, 3), ("suffix", 2, 0)]
    steps = [PlayedStep(10.0, [PlayedRound(source, drafted, accepted, 1)]) for source, drafted, accepted in drafts]
    kept = count_kept(steps)["suffix"]
    assert kept.drafted[:4] == [4, 3, 2, 0] and kept.right[:4] == [3, 1, 1, 0]
    found = bound({"suffix": kept}, TABLE, 1, 10.0)
    seconds = TABLE.plain(1, 10.0) + TABLE.target.seconds(1 + 9 / 4) - TABLE.target.seconds(1) + TABLE.spelling(1)
    assert found.tokens_per_second == pytest.approx((1 + 5 / 4) / seconds)
    assert bound({"suffix": kept}, TABLE, 1, 10.0, plain=2.0).times_plain == pytest.approx(2 * found.tokens_per_second)


def test_text_that_shorter_drafts_leave_is_written_without() -> None:
    """A proposer that had best not draft leaves its text to plain rounds, not to nobody: only half of it is gained."""
    steps = [
        PlayedStep(10.0, [PlayedRound("suffix", 3, 3, 1)]),
        PlayedStep(10.0, [PlayedRound("draft_model", 3, 3, 3)]),
    ]
    dear = CostTable(
        ForwardCost((64,), (Curve((1,), (1.0,)),)), {"draft_model": ForwardCost((64,), (Curve((1,), (9.0,)),))}
    )
    found = bound(count_kept(steps), dear, 1, 10.0)
    assert found.lengths == {"suffix": 3, "draft_model": 0}
    assert found.times_plain == pytest.approx(8 / 5), "one round for four tokens, four rounds for the other four"


@pytest.mark.parametrize("batch", [1, 8, 16])
def test_where_nothing_is_drafted_the_bound_is_plain_decoding(batch: int) -> None:
    found = bound({"": Kept(rounds=5)}, TABLE, batch, 64.0)
    assert found.times_plain == pytest.approx(1.0)
    assert found.tokens_per_second == pytest.approx(batch / TABLE.plain(batch, 64.0))


@given(STEPS, STEPS)
def test_the_best_bound_is_none_below_the_others(first: list[PlayedStep], second: list[PlayedStep]) -> None:
    counts = [count_kept(first), count_kept(second)]
    best = best_bound(counts, TABLE, 2, 64.0).tokens_per_second
    assert best == max(bound(kept, TABLE, 2, 64.0).tokens_per_second for kept in counts)
