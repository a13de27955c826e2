"""Seeded luck that depends on text only: noise keyed by (seed, choice, byte offset, the token's bytes).

Because bytes key it and not ids, batches or positions, one seed gives one text whatever is drafted, and a drafter with
another vocabulary can use the same luck: tokens that spell the same bytes at the same offset get the same noise in both
models (after drafter-invariant speculation, Daliri et al. 2024). Knows hashes, no logits.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

MASK = (1 << 64) - 1


def token_hashes(token_bytes: list[bytes]) -> Tensor:
    """A 64-bit hash of each id's bytes [vocabulary]. Of ids that spell the same, later ones get a tag; so do ids
    without bytes.
    """
    seen: dict[bytes, int] = {}
    hashes = []
    for spelled in token_bytes:
        tag = seen.get(spelled, 0)
        seen[spelled] = tag + 1
        digest = hashlib.blake2b(spelled, digest_size=8, person=tag.to_bytes(8, "little")).digest()
        hashes.append(int.from_bytes(digest, "little", signed=True))
    return torch.tensor(hashes, dtype=torch.int64)


def row_key(seed: int, choice: int, offset: int, silent: int) -> int:
    """The key of one position: `offset` bytes after the prompt, `silent` tokens without bytes since the last byte."""
    key = _mix(seed & MASK)
    for part in (choice, offset, silent):
        key = _mix(key ^ (part & MASK))
    return key - (1 << 64) if key >= 1 << 63 else key


def gumbel(keys: Tensor, hashes: Tensor) -> Tensor:
    """Standard Gumbel noise, float64: keys [..., 1] and hashes broadcast against each other."""
    mixed = _mix_tensor(keys ^ hashes)
    uniform = (_shift(mixed, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _mix(value: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_tensor(value: Tensor) -> Tensor:
    """The same on int64 tensors, whose products wrap around."""
    value = value + _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift right of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
