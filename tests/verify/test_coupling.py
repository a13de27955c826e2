"""Shared noise across two vocabularies: a drafter with other tokens predicts a sample better with it."""

from __future__ import annotations

import pytest
import torch

from codespec.api.types import CompletionRequest
from codespec.verify.sampling import Position, Sampler
from tests.kin import cousin
from tests.pairs import build, model, prompts, run, total

ROWS = 4000


def agreement(target: list[bytes], drafter: list[bytes], seeds: tuple[int, int], chance: dict[bytes, float]) -> float:
    """Return how often both choose a token with the same first byte, each from its own vocabulary."""
    first = []
    for table, seed in zip((target, drafter), seeds, strict=True):
        request = CompletionRequest(prefix="x", temperature=1.0, seed=seed)
        logits = torch.tensor([chance[spelled] for spelled in table]).log().expand(ROWS, -1).clone()
        chosen = Sampler(table).choose(logits, request, 0, [Position(offset) for offset in range(ROWS)])
        first.append([table[number][:1] for number in chosen])
    return sum(ours == theirs for ours, theirs in zip(*first, strict=True)) / ROWS


def test_the_same_bytes_in_another_order() -> None:
    chance = {bytes([97 + number]): 1 / 8 for number in range(8)}
    table = list(chance)
    assert agreement(table, table[::-1], (5, 5), chance) == 1.0
    assert agreement(table, table[::-1], (5, 6), chance) == pytest.approx(1 / 8, abs=0.02)


def test_other_tokens_for_the_same_text() -> None:
    """The drafter has only single letters, the target also pairs; both have the same distribution of text."""
    chance = {b"a": 0.2, b"ab": 0.1, b"b": 0.1, b"c": 0.25, b"cd": 0.05, b"d": 0.3}
    letters = {b"a": 0.3, b"b": 0.1, b"c": 0.3, b"d": 0.3}
    shared, apart = (agreement(list(chance), list(letters), seeds, chance | letters) for seeds in ((1, 1), (1, 2)))
    assert apart == pytest.approx(0.28, abs=0.03)
    assert shared > 0.75


def test_through_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real drafter with another vocabulary: independent noise would lose most of the accepted tokens."""
    target, drafter = model("llama", "bytes"), cousin("llama", noise=0.01)
    requests = [
        CompletionRequest(prefix=prefix, max_tokens=40, temperature=0.8, seed=seed)
        for seed, prefix in enumerate(prompts(6))
    ]
    shared = run(build(target, drafter=drafter), requests)
    engine = build(target, drafter=drafter)
    other = Sampler([b"another noise" + spelled for spelled in drafter.token_bytes])
    monkeypatch.setattr(engine.proposers[0], "_sampler", other)
    apart = run(engine, requests)
    assert [done.token_ids for done in shared] == [done.token_ids for done in apart], "the text is the target's alone"
    rates = [total(done).accepted / total(done).drafted for done in (shared, apart)]
    assert rates[0] > 0.4 and rates[0] > 2.5 * rates[1]
