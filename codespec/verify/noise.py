"""Seeded noise for sampling. A token's noise is a hash of the seed, the choice, the byte offset and the token's bytes.

No token id, batch or draft enters the hash, so a seed gives the same text with any draft. Tokens with the same bytes at
the same offset get the same noise in every model, so a drafter with another vocabulary can use the target's noise
(drafter-invariant speculation, Daliri et al. 2024).

The noise is computed from 52 bits. The upper 32 bits take two 32-bit products, which is cheap enough for a whole
vocabulary in every row, and they bound the noise, so only the few tokens that may win need the lower 20 bits.
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
    """Return a 64-bit hash of each id's bytes [vocabulary]. Ids with equal bytes get different hashes."""
    seen: dict[bytes, int] = {}
    hashes = []
    for spelled in token_bytes:
        tag = seen.get(spelled, 0)
        seen[spelled] = tag + 1
        digest = hashlib.blake2b(spelled, digest_size=8, person=tag.to_bytes(8, "little")).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return np.array(hashes, dtype=np.uint64)


def row_key(seed: int, *place: int) -> int:
    """Return the 64-bit key of one draw.

    `place` holds the choice, the number of bytes after the prompt, the number of tokens without bytes since the last
    byte, and further numbers that distinguish draws at the same position.
    """
    key = _mix(seed & MASK)
    for part in place:
        key = _mix(key ^ (part & MASK))
    return key


def uniform(key: int) -> float:
    """Return a number in [0, 1) with 48 random bits."""
    return (_mix(key) >> 16) * 2.0**-48


def halves(hashes: Hashes) -> Halves:
    """Return the lower and the upper 32 bits of each hash as two arrays."""
    return (hashes & np.uint64(LOW)).astype(np.uint32), (hashes >> np.uint64(32)).astype(np.uint32)


def coarse(key: int, hashes: Halves) -> NDArray[np.uint32]:
    """Return the upper 32 of each token's 52 bits, which depend on all bits of the key and of the token's hash."""
    bits = hashes[0] ^ np.uint32(key & LOW)
    bits *= np.uint32(0x7FEB352D)
    bits ^= bits >> np.uint32(15)
    bits ^= hashes[1]
    bits *= np.uint32(key >> 32 | 1)
    return bits


def gumbel(key: int, hashes: Hashes) -> Floats:
    """Return standard Gumbel noise for the tokens with these hashes."""
    upper = coarse(key, halves(hashes)).astype(np.uint64) << np.uint64(20)
    lower = _mix_all(hashes ^ np.uint64(key)) >> np.uint64(44)
    uniforms = ((upper | lower).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniforms))


def min_coarse(noise: float) -> int:
    """Return the lowest value of `coarse` at which a token's noise can reach `noise`."""
    return int(math.exp(-math.exp(-noise)) * 2.0**32)


def _mix(value: int) -> int:
    """Apply SplitMix64's finalizer (Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_all(value: Hashes) -> Hashes:
    """Apply SplitMix64's finalizer to an array, whose products wrap around."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
