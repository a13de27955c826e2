"""More on a row's choice: filters as in transformers, ids with equal or empty bytes, further biases.

Statistical tests run over seeds or offsets 0…n in order, so none fails by chance; each is shown to be able to fail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from codespec.api.types import CompletionRequest
from codespec.verify import sampling
from codespec.verify.sampling import Floats, Hashes, Position, Sampler, penalize, probabilities, token_hashes

LETTERS = [bytes([97 + number]) for number in range(12)]
DRAWS = 20_000
LIMIT = 37.4  # chi-square of 11 degrees of freedom, 1 in 10,000


def logits_of(seed: int, size: int = 12, rows: int = 1) -> Tensor:
    return 1.5 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def request_of(**settings: object) -> CompletionRequest:
    return CompletionRequest(prefix="x", **{"temperature": 1.0, **settings})


def draw(table: Sequence[bytes], row: Tensor, request: CompletionRequest, draws: int = DRAWS) -> Tensor:
    """Return how often each id is chosen, over many offsets."""
    sampler = Sampler(list(table))
    positions = [Position(offset) for offset in range(draws)]
    chosen = sampler.choose(row.expand(draws, -1).clone(), request, 0, positions)
    return torch.bincount(torch.tensor(chosen), minlength=len(table))


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Return the chi-square of the ids that can be chosen; infinity if another was."""
    possible = probabilities > 0
    if counts[~possible].sum():
        return float("inf")
    expected = probabilities[possible].double() * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum())


FILTERS = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.4, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
]


def test_the_distribution_over_seeds() -> None:
    """Users vary the seed."""
    row, sampler = logits_of(2), Sampler(LETTERS)
    chosen = [sampler.choose(row.clone(), request_of(seed=seed), 0, [Position(0)])[0] for seed in range(3000)]
    assert chi_square(torch.bincount(torch.tensor(chosen), minlength=12), row.softmax(dim=1)[0]) < LIMIT


def scaled(key: int, hashes: Hashes) -> Floats:
    """A planted bias: noise that is slightly too weak."""
    return 0.9 * sampling_gumbel(key, hashes)


def ignoring_place(key: int, hashes: Hashes) -> Floats:
    """A planted bias: the offset is ignored."""
    return sampling_gumbel(0, hashes)


def uniform(key: int, hashes: Hashes) -> Floats:
    """A planted bias: another kind of noise with the same mean and variance."""
    return 1.2825 * (np.exp(-np.exp(-sampling_gumbel(key, hashes))) * 3.4641 - 1.7320) + 0.5772


sampling_gumbel = sampling.gumbel


@pytest.mark.parametrize("bias", [scaled, ignoring_place, uniform])
def test_a_planted_bias_is_caught(bias: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "gumbel", bias)
    assert chi_square(draw(LETTERS, logits_of(1), request_of()), logits_of(1).softmax(dim=1)[0]) > 2 * LIMIT


def test_two_ids_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own noise; without the tag the likelier one would always win."""
    table = [*LETTERS[:6], *LETTERS[:6]]
    row = logits_of(3)
    assert chi_square(draw(table, row, request_of()), row.softmax(dim=1)[0]) < LIMIT
    same = np.tile(token_hashes(LETTERS[:6]), 2)
    monkeypatch.setattr(sampling, "token_hashes", lambda _: same)
    assert chi_square(draw(table, row, request_of()), row.softmax(dim=1)[0]) > 2 * LIMIT


def test_ids_without_bytes() -> None:
    table = [*LETTERS[:8], b"", b"", b"", b""]
    row = logits_of(4)
    assert chi_square(draw(table, row, request_of()), row.softmax(dim=1)[0]) < LIMIT


def test_silent_tokens_do_not_repeat_themselves() -> None:
    """A token without bytes leaves the offset unchanged; a counter in the key gives the next one new noise."""
    table = [*LETTERS[:11], b""]
    row = torch.zeros(1, 12)
    positions = [Position(7, silent) for silent in range(DRAWS)]
    chosen = Sampler(table).choose(row.expand(DRAWS, -1).clone(), request_of(), 0, positions)
    assert chi_square(torch.bincount(torch.tensor(chosen), minlength=12), row.softmax(dim=1)[0]) < LIMIT


@given(
    st.integers(0, 10**6),
    st.floats(0.1, 3.0),
    st.integers(0, 30),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.5),
    st.sampled_from([1.0, 0.7, 1.3]),
)
@example(0, 0.5, 0, 0.9999999999999999, 0.0, 1.0)  # more than the rounded float64 sum of all
@example(0, 0.5, 7, 0.9999999999999999, 0.0, 1.0)
def test_filters_are_transformers(
    seed: int, temperature: float, k: int, p: float, min_p: float, penalty: float
) -> None:
    """The same ids survive, with the same probabilities, as in Hugging Face `generate`."""
    request = request_of(temperature=temperature, top_k=k, top_p=p, min_p=min_p, repetition_penalty=penalty)
    row, before = logits_of(seed, 24), [3, 5, 5, 23, seed % 24]
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)])
    if k:
        steps.append(TopKLogitsWarper(k))
    if p < 1.0:
        steps.append(TopPLogitsWarper(p))
    if min_p > 0.0:
        steps.append(MinPLogitsWarper(min_p))
    theirs = steps(torch.tensor([before]), row.clone()).softmax(dim=1)
    ours = row.clone()
    penalize(ours.numpy()[0], before, penalty)
    assert torch.allclose(torch.from_numpy(probabilities(ours.numpy()[0], request)), theirs[0], atol=1e-6)


def test_greedy_is_the_best_after_the_penalty() -> None:
    row = torch.tensor([[1.0, 3.0, 2.9, -1.0]])
    sampler, request = Sampler([b"a", b"b", b"c", b"d"]), request_of(temperature=0.0, repetition_penalty=1.1)
    assert sampler.choose(row.clone(), request, 0, [Position(0, before=(0,))]) == [1]
    assert sampler.choose(row.clone(), request, 0, [Position(0, before=(1, 1))]) == [2], (
        "once, however often it was said"
    )


@given(st.integers(0, 10**6), st.integers(2, 7), st.sampled_from([0.0, 0.8]), st.sampled_from([1.0, 1.2]))
def test_rows_do_not_know_each_other(seed: int, rows: int, temperature: float, penalty: float) -> None:
    """A row's choice is the same alone and among others: drafted or not, batched or not."""
    request = request_of(temperature=temperature, top_p=0.9, repetition_penalty=penalty, seed=seed)
    logits = logits_of(seed, 12, rows).to(torch.bfloat16).float()  # bfloat16 has ties
    allowed = [1, 4, 5]
    positions = [Position(seed % 50 + n, n % 2, (n, n + 1), allowed if n == 1 else None) for n in range(rows)]
    sampler = Sampler(LETTERS)
    together = sampler.choose(logits.clone(), request, 1, positions)
    alone = [
        sampler.choose(logits[n : n + 1].clone(), request, 1, [position])[0] for n, position in enumerate(positions)
    ]
    assert together == alone and together[1] in (1, 4, 5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_ids(temperature: float) -> None:
    row, request = logits_of(5), request_of(temperature=temperature)
    positions = [Position(offset, allowed=[2, 9]) for offset in range(4000)]
    counts = torch.bincount(
        torch.tensor(Sampler(LETTERS).choose(row.expand(4000, -1).clone(), request, 0, positions)), minlength=12
    )
    wanted = torch.zeros(12)
    wanted[[2, 9]] = row[0, [2, 9]].softmax(dim=0)
    if temperature:
        assert chi_square(counts, wanted) < 15
    else:
        assert counts[[2, 9]].sum() == 4000 == counts.max()
