"""Seeded noise that depends on text only: its key is (seed, choice, byte offset, the token's bytes).

Bytes key it, not ids, batches or positions. So one seed gives one text whatever is drafted, and a drafter with another
vocabulary can use the same noise: tokens that spell the same bytes at the same offset get the same noise in both models
(after drafter-invariant speculation, Daliri et al. 2024). Knows hashes; does not know logits.

A token's noise comes from 52 bits. The upper 32 come from two 32-bit products, cheap enough for a whole vocabulary at
every row; they bound the noise, so that only the few tokens that may win need the rest.
"""

from __future__ import annotations

import collections.abc
import hashlib
import math

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
LOW = (1 << 32) - 1
Hashes = NDArray[np.uint64]
Halves = tuple[NDArray[np.uint32], NDArray[np.uint32]]
Floats = NDArray[np.float64]


def token_hashes(token_bytes: collections.abc.Sequence[bytes]) -> Hashes:
    """A 64-bit hash of each id's bytes [vocabulary]. Of ids that spell the same, later ones get a tag; so do ids
    without bytes.
    """
    seen: dict[bytes, int] = {}
    hashes = []
    for spelled in token_bytes:
        tag = seen.get(spelled, 0)
        seen[spelled] = tag + 1
        digest = hashlib.blake2b(spelled, digest_size=8, person=tag.to_bytes(8, "little")).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return np.array(hashes, dtype=np.uint64)


def row_key(seed: int, *place: int) -> int:
    """The 64-bit key of one position: choice, bytes after the prompt, tokens without bytes since the last byte, and
    what else tells one draw from another.
    """
    key = _mix(seed & MASK)
    for part in place:
        key = _mix(key ^ (part & MASK))
    return key


def uniform(key: int) -> float:
    """A number in [0, 1) with 48 bits."""
    return (_mix(key) >> 16) * 2.0**-48


def halves(hashes: Hashes) -> Halves:
    """Lower and upper 32 bits, each in a row of its own."""
    return (hashes & np.uint64(LOW)).astype(np.uint32), (hashes >> np.uint64(32)).astype(np.uint32)


def coarse(key: int, hashes: Halves) -> NDArray[np.uint32]:
    """The upper 32 of each token's bits. Both halves of key and hash go in, so that no two tokens share theirs."""
    bits = hashes[0] ^ np.uint32(key & LOW)
    bits *= np.uint32(0x7FEB352D)
    bits ^= bits >> np.uint32(15)
    bits ^= hashes[1]
    bits *= np.uint32(key >> 32 | 1)
    return bits


def gumbel(key: int, hashes: Hashes) -> Floats:
    """Standard Gumbel noise of these tokens."""
    upper = coarse(key, halves(hashes)).astype(np.uint64) << np.uint64(20)
    lower = _mix_all(hashes ^ np.uint64(key)) >> np.uint64(44)
    uniforms = ((upper | lower).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniforms))


def least_coarse(noise: float) -> int:
    """A token whose upper bits are below this has less noise than that."""
    return int(math.exp(-math.exp(-noise)) * 2.0**32)


def _mix(value: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_all(value: Hashes) -> Hashes:
    """The same for many, whose products wrap around."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
