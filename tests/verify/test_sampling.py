"""Choices: greedy, filters, and seeded noise that follows the model's distribution. The statistical tests can fail."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from codespec.api.types import CompletionRequest
from codespec.verify import sampling
from codespec.verify.sampling import Position, Sampler, gumbel, row_key, token_hashes

WORDS = [b"a", b"b", b"ab", b"c", b" ", b"\n", b"if", b"x", b"y", b"(", b")", b"return"]
REQUEST = CompletionRequest(prefix="x", temperature=1.0)
SEEDS, PLACES = 30, 200
DRAWS = SEEDS * PLACES
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 0.2, 0.7, -2.0, 1.1, -0.3])


def draws(request: CompletionRequest, logits: Tensor = LOGITS, words: list[bytes] = WORDS) -> Counter[int]:
    """Return the choices of SEEDS seeds, in order from 0, at PLACES positions each."""
    sampler = Sampler(words)
    positions = [Position(offset) for offset in range(PLACES)]
    counts: Counter[int] = Counter()
    for seed in range(SEEDS):
        counts.update(sampler.choose(logits.repeat(PLACES, 1), replace(request, seed=seed), 0, positions))
    return counts


def chi_square(counts: Counter[int], probabilities: Tensor) -> float:
    """Return Pearson's statistic over its degrees of freedom; about 1 if the counts follow the probabilities."""
    expected = [(i, float(p) * DRAWS) for i, p in enumerate(probabilities) if p > 0]
    assert sum(counts[i] for i, _ in expected) == DRAWS, "something impossible was chosen"
    return sum((counts[i] - mean) ** 2 / mean for i, mean in expected) / (len(expected) - 1)


def keep(probabilities: Tensor, ids: list[int]) -> Tensor:
    kept = torch.zeros_like(probabilities)
    kept[ids] = probabilities[ids]
    return kept / kept.sum()


FILTERS: list[tuple[dict[str, Any], Tensor]] = [
    ({}, LOGITS.softmax(0)),
    ({"temperature": 0.6}, (LOGITS / 0.6).softmax(0)),
    ({"top_k": 3}, keep(LOGITS.softmax(0), [0, 1, 10])),
    ({"top_p": 0.5}, keep(LOGITS.softmax(0), [0, 1, 10])),
    ({"min_p": 0.3}, keep(LOGITS.softmax(0), [0, 1, 2, 10])),
]


@pytest.mark.parametrize(("change", "probabilities"), FILTERS, ids=lambda value: str(value)[:24])
def test_samples_follow_the_filtered_distribution(change: dict[str, Any], probabilities: Tensor) -> None:
    assert chi_square(draws(replace(REQUEST, **change)), probabilities) < 2.2


def test_a_planted_bias_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check with noise that is a tenth too weak, and with noise that ignores seed and position."""
    monkeypatch.setattr(sampling, "gumbel", lambda key, hashes: 0.9 * gumbel(key, hashes))
    assert chi_square(draws(REQUEST), LOGITS.softmax(0)) > 2.2
    monkeypatch.setattr(sampling, "gumbel", lambda key, hashes: gumbel(1, hashes))
    assert chi_square(draws(REQUEST), LOGITS.softmax(0)) > 2.2


def test_ids_that_spell_the_same_share_noise_fairly() -> None:
    """Two ids with equal bytes and equal logits must split their probability, not win and lose together."""
    words = [b"a", b"a", b"b"]
    logits = torch.tensor([0.0, 0.0, math.log(2.0)])
    assert chi_square(draws(REQUEST, logits, words), torch.tensor([0.25, 0.25, 0.5])) < 4.0


def test_successive_places_are_independent() -> None:
    sampler = Sampler(WORDS)
    chosen = sampler.choose(LOGITS.repeat(3001, 1), REQUEST, 0, [Position(offset) for offset in range(3001)])
    equal = sum(first == second for first, second in pairwise(chosen))
    same = float((LOGITS.softmax(0) ** 2).sum())
    assert abs(equal / 3000 - same) < 4 * math.sqrt(same * (1 - same) / 3000)


def test_alternatives_and_silent_tokens_have_keys_of_their_own() -> None:
    keys = {row_key(1, choice, offset, silent) for choice in range(4) for offset in range(4) for silent in range(4)}
    assert len(keys) == 64
    assert row_key(1, 0, 5, 0) == row_key(1, 0, 5, 0) != row_key(2, 0, 5, 0)


@given(st.integers(0, 2**63), st.integers(0, 400), st.sets(st.integers(0, 11), min_size=1, max_size=4))
def test_a_choice_depends_on_its_row_and_place_alone(seed: int, offset: int, neighbours: set[int]) -> None:
    sampler = Sampler(WORDS)
    request = replace(REQUEST, seed=seed, top_p=0.9)
    alone = sampler.choose(LOGITS[None].clone(), request, 0, [Position(offset)])
    others = [torch.roll(LOGITS, shift) for shift in neighbours]
    rows = torch.stack([*others, LOGITS])
    positions = [Position(offset + 1 + i) for i in range(len(others))] + [Position(offset)]
    assert sampler.choose(rows, request, 0, positions)[-1] == alone[0]


@given(st.integers(0, 2**63), st.integers(0, 500))
def test_noise_is_the_bytes_own_and_not_the_ids(seed: int, offset: int) -> None:
    """The same tokens under other ids win at the same position, so noise can be shared across vocabularies."""
    order = [5, 0, 11, 3, 8, 1, 10, 2, 7, 4, 9, 6]
    request = replace(REQUEST, seed=seed)
    here = Sampler(WORDS).choose(LOGITS[None].clone(), request, 0, [Position(offset)])[0]
    there = Sampler([WORDS[i] for i in order])
    chosen = there.choose(LOGITS[order][None].clone(), request, 0, [Position(offset)])[0]
    assert order[chosen] == here


def test_repetition_penalty_and_allowed_ids() -> None:
    sampler = Sampler(WORDS)
    greedy = replace(REQUEST, temperature=0.0, repetition_penalty=10.0)
    assert sampler.choose(LOGITS[None].clone(), greedy, 0, [Position(0, before=[0])]) == [1]
    assert sampler.choose(LOGITS[None].clone(), greedy, 0, [Position(0, before=[0, 1, 0])]) == [10]
    plain = replace(REQUEST, temperature=0.0)
    assert sampler.choose(LOGITS[None].clone(), plain, 0, [Position(0, allowed=[9, 4])]) == [4]


def test_hashes_differ_for_every_id() -> None:
    words = [b"a", b"b", b"a", b"", b"", b"ab", b"a"]
    assert len(set(token_hashes(words).tolist())) == len(words)
