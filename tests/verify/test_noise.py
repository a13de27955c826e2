"""Noise keyed by text: its distribution, and what it does and does not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.verify.sampling import Floats, coarse, gumbel, halves, min_coarse, row_key, token_hashes, uniform
from tests.toy_tokenizers import KINDS, toy_tokenizer

EULER = 0.5772156649


def noise(count: int, words: list[bytes], seed: int = 0) -> Floats:
    """Return noise [count offsets, words]."""
    hashes = token_hashes(words)
    return np.stack([gumbel(row_key(seed, 0, offset, 0), hashes) for offset in range(count)])


def test_it_is_gumbel_noise() -> None:
    """Kolmogorov-Smirnov distance of 40,000 values from exp(-exp(-x)); mean and variance."""
    drawn = np.sort(noise(2000, [bytes([number]) for number in range(20)]), axis=None)
    for scale in (1.0, 0.9):
        expected = np.exp(-np.exp(-scale * drawn))
        distance = np.abs(expected - np.arange(1, drawn.size + 1) / drawn.size).max()
        assert (distance < 1.63 / math.sqrt(drawn.size)) == (scale == 1.0), "a planted bias is seen"
    assert abs(drawn.mean() - EULER) < 0.02
    assert abs(drawn.var() - math.pi**2 / 6) < 0.04


@pytest.mark.parametrize("by", ["token", "offset", "seed"])
def test_neighbours_are_independent(by: str) -> None:
    words = [bytes([number]) for number in range(64)]
    first = second = noise(800, words)
    if by == "token":
        first, second = first[:, :-1], first[:, 1:]
    elif by == "offset":
        first, second = first[:-1], second[1:]
    else:
        second = noise(800, words, seed=1)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 4 / math.sqrt(first.size)


def test_great_noise_is_independent_too() -> None:
    """The top of the noise decides which of many tokens wins: pairs that are both among the noisiest 1 in 64."""
    tokens, rows = halves(token_hashes([b"%d" % number for number in range(300)])), 8000
    noisy = np.stack([coarse(row_key(3, 0, offset, 0), tokens) for offset in range(rows)]) >= 63 << 26
    pairs = noisy.T.astype(np.float32) @ noisy
    both = pairs[np.triu_indices(300, 1)]
    assert both.mean() == pytest.approx(rows / 64**2, rel=0.02)
    assert both.var() == pytest.approx(rows / 64**2, rel=0.06), "as many as chance gives, and no pair more often"


@given(st.integers(0, 2**64), st.floats(0.5, 12.0))
def test_the_upper_bits_bound_the_noise(seed: int, bound: float) -> None:
    hashes = token_hashes([b"%d" % number for number in range(200)])
    key = row_key(seed, 0, 0, 0)
    low = coarse(key, halves(hashes)) < min_coarse(bound)
    assert (gumbel(key, hashes)[low] < bound).all() and (gumbel(key, hashes)[~low] > bound - 1e-4).all()


def test_numbers_from_keys_are_even() -> None:
    """The uniform numbers used to accept and to redraw."""
    drawn = np.array([uniform(row_key(7, 0, offset, 0, 1)) for offset in range(4000)])
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    assert np.abs(np.sort(drawn) - np.arange(4000) / 4000).max() < 1.63 / math.sqrt(4000)
    other = np.array([uniform(row_key(7, 0, offset, 0, 2)) for offset in range(4000)])
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 4 / math.sqrt(4000)


@given(st.integers(-(2**70), 2**70), st.integers(0, 15), st.integers(0, 10**7), st.integers(0, 50))
def test_each_part_of_the_key_counts(seed: int, choice: int, offset: int, silent: int) -> None:
    key = row_key(seed, choice, offset, silent)
    assert 0 <= key < 2**64
    others = {
        row_key(seed + 1, choice, offset, silent),
        row_key(seed, choice + 1, offset, silent),
        row_key(seed, choice, offset + 1, silent),
        row_key(seed, choice, offset, silent + 1),
        row_key(seed, offset, choice, silent) if offset != choice else key + 1,
    }
    assert key not in others and len(others) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_ids_share_their_noise(kind: str) -> None:
    """Ids with equal bytes get a tag; so do ids without bytes."""
    table = [*toy_tokenizer(kind).token_bytes, b"", b"", b"x", b"x"]
    hashes = token_hashes(table)
    assert len(set(hashes.tolist())) == len(table)


def test_the_same_bytes_have_the_same_noise_in_two_vocabularies() -> None:
    first, second = [b"a", b"ab", b"", b"b"], [b"b", b"", b"ab", b"c", b"a", b"a"]
    ours, theirs = token_hashes(first).tolist(), token_hashes(second).tolist()
    for number, spelled in enumerate(first):
        assert ours[number] == theirs[second.index(spelled)]
