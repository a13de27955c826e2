"""Counting rules: drafted and accepted exclude the bonus token, committed includes it, and all rounds count."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import fields

import pytest

from codespec.api.types import Completion, CompletionRequest, Counts, Stats
from codespec.sequence import Candidates, Cap, Sequence
from codespec.speculation.policy import DraftPlan, DraftPolicy, StepResults
from tests.pairs import CAP, Garbage, Mixed, Silent, Troupe, build, model, run, total, varied_requests
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

PREFIX, SPOKEN = "x = 1\n", "y = 2\nz = [3, 4, 5]\nprint(x, y, z)\n"


def complete(sizes: tuple[int, ...] | None, **request: object) -> Completion:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    proposer = Prompter(parrot, sizes) if sizes else None
    return parrot_engine(parrot, proposer).complete([CompletionRequest(prefix=PREFIX, **request)])[0]


def test_plain_decoding() -> None:
    stats = complete(None, max_tokens=10).stats
    assert (stats.rounds, stats.committed, stats.drafted, stats.accepted) == (10, 10, 0, 0)
    assert stats.rounds_full == stats.rounds_partial == stats.rounds_none == 0 and stats.by_source == {}
    assert stats.prompt_tokens == len(PREFIX) and stats.cached_tokens == 0


def test_right_drafts() -> None:
    """Three drafted plus a bonus token each: 4 + 4 + 2, the last draft being cut to the remaining tokens."""
    stats = complete((3,), max_tokens=10).stats
    assert (stats.rounds, stats.committed) == (3, 10)
    assert (stats.drafted, stats.accepted) == (3 + 3 + 1, 3 + 3 + 1)
    assert stats.rounds_full == 3 and stats.by_source == {"scripted": Counts(7, 7)}


def test_an_end_inside_an_accepted_draft() -> None:
    """Tokens after the text's end were drafted, but are neither accepted nor committed."""
    done = complete((8,), max_tokens=30, stop=("= 2",))
    assert (done.text, len(done.token_ids)) == ("y ", 5)
    assert (done.stats.drafted, done.stats.accepted, done.stats.committed) == (8, 5, 5)
    assert done.stats.rounds_partial == 1


@pytest.mark.parametrize("batch", [1, 4])
def test_the_sums_agree(batch: int) -> None:
    """Each round commits the accepted tokens plus one, except if a text ends inside a draft."""
    target, requests = model("llama", "gpt2"), varied_requests()
    plain = run(build(target), requests, speculate=False)
    script = (target, requests, plain)
    engine = build(target, Troupe(Mixed(*script, as_ids=True), Garbage(), Silent()), max_batch=batch)
    done = run(engine, requests)
    for choice in done:
        stats = choice.stats
        assert stats.committed == len(choice.token_ids) == stats.accepted + stats.rounds
        assert stats.accepted <= stats.drafted == sum(part.drafted for part in stats.by_source.values())
        assert stats.accepted == sum(part.accepted for part in stats.by_source.values())
        assert 0 < stats.rounds_full + stats.rounds_partial + stats.rounds_none <= stats.rounds
    whole = total(done)
    assert set(whole.by_source) == {"Mixed", "Garbage"}
    assert whole.rounds_full + whole.rounds_partial + whole.rounds_none < 0.9 * whole.rounds
    for field in fields(Stats):
        ours, theirs = getattr(engine.metrics.totals, field.name), getattr(whole, field.name)
        assert ours == pytest.approx(theirs) if isinstance(ours, float) else ours == theirs, field.name


def test_times_cover_the_work() -> None:
    target, requests = model("llama", "gpt2"), varied_requests(n=1)[:3]
    engine = build(target, Garbage())
    for done in run(engine, requests, together=False):
        stats = done.stats
        parts = stats.prefill_ms + stats.draft_ms + stats.retokenize_ms + stats.verify_ms + stats.other_ms
        assert min(stats.prefill_ms, stats.verify_ms, stats.retokenize_ms, stats.first_piece_ms) > 0
        assert parts <= stats.total_ms * 1.01
        assert parts >= 0.5 * stats.total_ms
        assert stats.first_piece_ms <= stats.total_ms
    assert engine.metrics.steps == engine.metrics.totals.rounds


def test_cached_tokens_are_counted() -> None:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot)
    request = CompletionRequest(prefix=PREFIX, max_tokens=4)
    counted = [engine.complete([request])[0].stats.cached_tokens for _ in range(2)]
    assert counted == [0, len(PREFIX) - 1], "the last prompt token is always computed"


class Noting(DraftPolicy):
    """A policy that drafts six tokens and keeps two, and records its calls."""

    name = "noting"

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.steps = 0

    def plan(self, batch: Several[Sequence]) -> DraftPlan:
        return DraftPlan([Cap(CAP + 1)] * len(batch), self._trim)

    def observe(self, results: StepResults) -> None:
        self.seen += [(len(candidates.ids), verdict.accepted) for _, candidates, verdict in results.rounds]
        assert results.verifying > 0.0 <= results.drafting
        self.steps += 1

    def _trim(self, candidates: list[Candidates]) -> list[Candidates]:
        return [Candidates(found.ids[:2], found.source, "trimmed") for found in candidates]


def test_the_policy_trims_and_learns() -> None:
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot, (6,)))
    engine.policy = policy = Noting()
    stats = engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=12)])[0].stats
    assert stats.drafted == 2 * stats.rounds == 8
    assert policy.seen == [(2, 2)] * 4 and policy.steps >= 4


def test_counting_is_fixed_once() -> None:
    """Drafted and accepted exclude the bonus token; rounds include those without a draft."""
    stats = Stats()
    for source, drafted, accepted in (("", 0, 0), ("suffix", 4, 4), ("draft_model", 3, 1), ("draft_model", 2, 0)):
        stats.count_round(source, drafted, accepted)
    assert (stats.rounds, stats.drafted, stats.accepted) == (4, 9, 5)
    assert (stats.rounds_full, stats.rounds_partial, stats.rounds_none) == (1, 1, 1)
    assert stats.by_source == {"suffix": Counts(4, 4), "draft_model": Counts(5, 1)}


def test_sums_keep_every_number_and_each_note_once() -> None:
    total, one = Stats(), Stats(prompt_tokens=3, committed=5, draft_ms=1.5, notes=["trimmed"])
    one.count_round("suffix", 2, 1)
    total.add(one)
    total.add(one)
    assert (total.prompt_tokens, total.committed, total.rounds, total.draft_ms) == (6, 10, 2, 3.0)
    assert total.by_source["suffix"] == Counts(4, 2)
    assert one.by_source["suffix"] == Counts(2, 1)
    assert total.notes == ["trimmed"]
