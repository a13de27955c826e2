"""Luck keyed by text: its distribution, and what it does and does not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codespec.verify.noise import gumbel, row_key, token_hashes
from tests.toy_tokenizers import KINDS, toy_tokenizer

EULER = 0.5772156649


def keys_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor([row_key(seed, 0, offset, 0) for offset in range(count)])[:, None]


def test_it_is_gumbel_noise() -> None:
    """Kolmogorov and Smirnov's distance of 40,000 values from exp(-exp(-x)); mean and variance."""
    hashes = token_hashes([bytes([number]) for number in range(20)])
    for scale in (1.0, 0.9):
        values = (scale * gumbel(keys_of(2000), hashes)).flatten().sort().values
        expected = torch.exp(-torch.exp(-values))
        distance = float((expected - torch.arange(1, len(values) + 1) / len(values)).abs().max())
        assert (distance < 1.63 / math.sqrt(len(values))) == (scale == 1.0), "a planted bias is seen"
    assert abs(float(values.mean()) / scale - EULER) < 0.02
    assert abs(float(values.var()) / scale**2 - math.pi**2 / 6) < 0.04


@pytest.mark.parametrize("by", ["token", "offset", "seed"])
def test_neighbours_are_independent(by: str) -> None:
    hashes = token_hashes([bytes([number]) for number in range(64)])
    first, second = gumbel(keys_of(800), hashes), gumbel(keys_of(800), hashes)
    if by == "token":
        first, second = first[:, :-1], first[:, 1:]
    elif by == "offset":
        first, second = first[:-1], second[1:]
    else:
        second = gumbel(keys_of(800, seed=1), hashes)
    correlation = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
    assert abs(float(correlation)) < 4 / math.sqrt(first.numel())


@given(st.integers(-(2**70), 2**70), st.integers(0, 15), st.integers(0, 10**7), st.integers(0, 50))
def test_each_part_of_the_key_counts(seed: int, choice: int, offset: int, silent: int) -> None:
    key = row_key(seed, choice, offset, silent)
    assert -(2**63) <= key < 2**63
    others = {
        row_key(seed + 1, choice, offset, silent),
        row_key(seed, choice + 1, offset, silent),
        row_key(seed, choice, offset + 1, silent),
        row_key(seed, choice, offset, silent + 1),
        row_key(seed, offset, choice, silent) if offset != choice else key + 1,
    }
    assert key not in others and len(others) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_ids_share_their_luck(kind: str) -> None:
    """Ids that spell the same get a tag; so do ids without bytes."""
    table = [*toy_tokenizer(kind).token_bytes, b"", b"", b"x", b"x"]
    hashes = token_hashes(table)
    assert len(set(hashes.tolist())) == len(table)


def test_the_same_bytes_have_the_same_luck_in_two_vocabularies() -> None:
    first, second = [b"a", b"ab", b"", b"b"], [b"b", b"", b"ab", b"c", b"a", b"a"]
    ours, theirs = token_hashes(first).tolist(), token_hashes(second).tolist()
    for number, spelled in enumerate(first):
        assert ours[number] == theirs[second.index(spelled)]
