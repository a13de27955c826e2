"""A vocabulary of 152,064 ids: few are hashed or sorted, and the choice equals that of hashing all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from codespec.api.types import CompletionRequest
from codespec.verify import sampling
from codespec.verify.sampling import Position, Row, Sampler, gumbel, row_key, survivors

SIZE = 152_064
KINDS = {"peaked": 2.5, "spread": 3.0, "flat": 1.0, "even": 0.0}  # standard deviation of the logits


@cache
def sampler() -> Sampler:
    return Sampler([number.to_bytes(3, "little") for number in range(SIZE)])


def row_of(kind: str, seed: int = 0) -> Row:
    """Peaked like a confident model, spread like an uncertain one, flat, or all equal."""
    generator = np.random.default_rng(seed)
    row = generator.standard_normal(SIZE, dtype=np.float32) * np.float32(KINDS[kind])
    if kind == "peaked":
        row[generator.integers(0, SIZE, 40)] += 18
    return row


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record how many ids each call hashed completely."""
    counts: list[int] = []
    monkeypatch.setattr(sampling, "gumbel", lambda key, hashes: counts.append(hashes.size) or gumbel(key, hashes))
    yield counts


def choose(row: Row, position: int, **settings: object) -> int:
    request = CompletionRequest(prefix="x", **{"temperature": 0.8, **settings})
    return sampler().choose(torch.from_numpy(row.copy())[None], request, 0, [Position(position)])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_few_ids_are_hashed_and_the_noisiest_wins(kind: str, hashed: list[int]) -> None:
    row, rounds = row_of(kind), 12
    for position in range(rounds):
        chosen = choose(row, position)
        noisy = row / np.float64(0.8) + gumbel(row_key(0, 0, position, 0), sampler()._hashes)
        assert chosen == noisy.argmax()
    assert sum(hashed) < rounds * 4_000, "about a thousand a row, whatever the row looks like"


def test_a_bound_too_high_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: a bound that is two nats too tight misses winners."""
    monkeypatch.setattr(sampling, "MARGIN", -4.0)
    row = row_of("spread")
    best = [int((row / 0.8 + gumbel(row_key(0, 0, position, 0), sampler()._hashes)).argmax()) for position in range(40)]
    assert [choose(row, position) for position in range(40)] != best


@pytest.mark.parametrize(
    "settings", [{"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 1000, "top_p": 0.95, "min_p": 0.001}]
)
def test_filters_come_first(settings: dict[str, float], hashed: list[int]) -> None:
    request = CompletionRequest(prefix="x", temperature=0.8, **settings)
    for kind in ("peaked", "spread"):
        kept = survivors(row_of(kind), request)
        assert kept is not None
        chosen = choose(row_of(kind), 5, **settings)
        assert chosen in kept and hashed[-1] <= kept.size
    assert sum(hashed) < 3_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.9999])
def test_the_nucleus_is_the_smallest_that_suffices(kind: str, share: float) -> None:
    """Compared with sorting everything; rounding ties may move the edge by a few ids in a hundred thousand."""
    row = row_of(kind)
    kept = survivors(row, CompletionRequest(prefix="x", temperature=0.8, top_p=share))
    assert kept is not None and len(set(kept.tolist())) == kept.size
    scores = row / np.float64(0.8)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    wanted = int(np.searchsorted(weights[order].cumsum(), share)) + 1
    assert kept.size == pytest.approx(wanted, rel=1e-4, abs=1)
    assert set(order[: kept.size].tolist()) == set(kept.tolist()), "the best, and of equal ones the first"
