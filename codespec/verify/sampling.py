"""Choose the target's token for each row of logits.

Greedy decoding takes the argmax of a row. Sampling takes the argmax of the row's filtered logits plus keyed noise, so a
chosen token depends only on the row's logits and its position in the text. Rows are processed separately on the CPU, so
other rows can't affect the chosen token. Filters are applied in the same order as in transformers: repetition penalty,
temperature, top-k, top-p, min-p.

A token's noise is a hash of the seed, the number of the choice, the byte offset and the token's bytes. The hash does
not include token ids, batches or drafts, so a seed yields the same text with any draft. Tokens with the same bytes at
the same offset have the same noise in every model, so a drafter with another vocabulary can use the target's noise
(drafter-invariant speculation, Daliri et al. 2024). The noise is computed from 52 bits. The upper 32 bits are cheap to
compute for every token and bound the noise, so the lower 20 bits are computed only for tokens that may be chosen.
"""

from __future__ import annotations

import collections.abc
import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import CompletionRequest
from codespec.backends.language_model import Logits, on_host

Row = NDArray[np.float32]  # one row of logits or probabilities [vocabulary]
Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Halves = tuple[NDArray[np.uint32], NDArray[np.uint32]]
Floats = NDArray[np.float64]

MASK, LOW = (1 << 64) - 1, (1 << 32) - 1
FEW = 512  # up to this many ids, the noise of all of them is computed
BOUND = 6.2  # nats of noise, exceeded by one id in 500
MARGIN = 1e-3  # nats, for rounding
NEAR = math.exp(-7.0)  # weight of an id close to the best, whose weight is 1
REACHES = (1.0, 2.0, 4.0, 8.0, 16.0, math.inf)  # nats below the best score, tried in order by _top


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a row of logits in the text."""

    offset: int  # bytes after the prompt
    silent: int = 0  # tokens without bytes since the last byte
    before: collections.abc.Sequence[int] = ()  # preceding ids, for the repetition penalty
    allowed: collections.abc.Sequence[int] | None = None  # ids that may be chosen (None: all)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row for which a token is chosen: the request, the number of the choice, and the position."""

    request: CompletionRequest
    choice: int
    position: Position


class Sampler:
    """Sampler for one vocabulary, with the hashes of its tokens."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self._token_bytes = token_bytes
        self._all = np.arange(len(token_bytes))

    @cached_property
    def _hashes(self) -> Hashes:
        """The hashes of all tokens, computed on first use because greedy decoding does not need hashes."""
        return token_hashes(self._token_bytes)

    @cached_property
    def _halves(self) -> Halves:
        return halves(self._hashes)

    def choose(
        self, logits: Logits, request: CompletionRequest, choice: int, positions: collections.abc.Sequence[Position]
    ) -> list[int]:
        """Return one id per row of float32 logits [rows, vocabulary], which may be modified in place."""
        rows = on_host(logits)
        for row, position in zip(rows, positions, strict=True):
            prepare(row, request, position)
        return [self.pick(row, request, choice, position) for row, position in zip(rows, positions, strict=True)]

    def pick(self, row: Row, request: CompletionRequest, choice: int, position: Position) -> int:
        """Return the token id chosen for a row that `prepare` has modified."""
        if request.temperature == 0.0:
            return int(row.argmax())
        ids, key = survivors(row, request), row_key(request.seed, choice, position.offset, position.silent)
        ids = self._all[: row.size] if ids is None else ids
        if ids.size > FEW:
            ids = self._contenders(row, ids, request.temperature, key)
        return int(ids[self._noisy(row, ids, request.temperature, key).argmax()])

    def _noisy(self, row: Row, ids: Ids, temperature: float, key: int) -> Floats:
        scores: Floats = row[ids].astype(np.float64) / temperature
        return scores + gumbel(key, self._hashes[ids])

    def _contenders(self, row: Row, ids: Ids, temperature: float, key: int) -> Ids:
        """Return the ids that may be chosen: those with more noise than BOUND, and those with sufficient scores."""
        whole = ids.size == row.size
        scores = row if whole else row[ids]
        hashes = (self._halves[0][: row.size], self._halves[1][: row.size])
        bits = coarse(key, hashes if whole else (hashes[0][ids], hashes[1][ids]))
        first = np.append(np.flatnonzero(bits >= min_coarse(BOUND)), scores.argmax())
        best = self._noisy(row, ids[first], temperature, key).max()
        near = np.flatnonzero(scores >= (best - BOUND - MARGIN) * temperature)
        contenders: Ids = ids[np.concatenate([first, near])]
        return contenders


def prepare(row: Row, request: CompletionRequest, position: Position) -> None:
    """Apply the repetition penalty in place, and exclude ids that are not allowed. Each row must be prepared once."""
    if request.repetition_penalty != 1.0:
        penalize(row, position.before, request.repetition_penalty)
    if position.allowed is not None:
        kept = np.array(position.allowed, dtype=np.int64)
        scores = row[kept]
        row.fill(-np.inf)
        row[kept] = scores


def penalize(row: Row, before: collections.abc.Sequence[int], penalty: float) -> None:
    """Apply the repetition penalty in place (Keskar et al. 2019): once per distinct id in `before`."""
    seen = np.array(before, dtype=np.int64)
    scores = row[seen]
    row[seen] = np.where(scores < 0, scores * penalty, scores / penalty)


def probabilities(row: Row, request: CompletionRequest) -> Row:
    """Return the probabilities [vocabulary] of a prepared row under the request's temperature and filters."""
    found = np.zeros_like(row)
    if request.temperature == 0.0:
        found[row.argmax()] = 1.0
        return found
    ids = survivors(row, request)
    kept = slice(None) if ids is None else ids
    found[kept] = np.exp((row[kept] - row.max()) / request.temperature)
    found /= found.sum(dtype=np.float64)
    return found


def draw(weights: Row, share: float) -> int:
    """Return the id at which the cumulative weights exceed `share` (0 to 1) of their sum."""
    ends = weights.cumsum(dtype=np.float64)
    return int(np.searchsorted(ends, share * ends[-1], side="right"))


def survivors(row: Row, request: CompletionRequest) -> Ids | None:
    """Return the ids that pass top-k, top-p and min-p filtering, or None if no filter applies."""
    ids: Ids | None = None
    if 0 < request.top_k < row.size:
        ids = _top(row, request.top_k)
    if request.top_p < 1.0:
        ids = _nucleus(row, ids, request.temperature, request.top_p)
    if request.min_p > 0.0:
        ids = np.arange(row.size) if ids is None else ids
        ids = ids[row[ids] >= row.max() + request.temperature * math.log(request.min_p)]
    return ids


def _top(row: Row, count: int) -> Ids:
    """Return the ids of the `count` highest scores, and further ids that tie with the lowest of these scores."""
    for reach in REACHES:
        head = np.flatnonzero(row >= row.max() - reach)
        if head.size >= count:
            break
    scores = row[head]
    kept: Ids = head[scores >= np.partition(scores, -count)[-count]]
    return kept


def _nucleus(row: Row, ids: Ids | None, temperature: float, share: float) -> Ids:
    """Return the fewest, likeliest of `ids` (None: all) whose probabilities reach `share`; low ids win ties."""
    scores = row if ids is None else row[ids]
    weights = np.exp((scores - row.max()) / temperature)
    wanted = share * float(weights.sum(dtype=np.float64))
    sure, close = _edge(weights, wanted)
    if not close.size:  # rounding puts the total below `share`: keep all ids
        return sure if ids is None else ids[sure]
    ordered = np.sort(scores[close])[::-1]
    ends = np.exp((ordered - row.max()) / temperature).cumsum(dtype=np.float64)
    before = np.append(0.0, ends[:-1])
    count = max(1, int((before < wanted - weights[sure].sum(dtype=np.float64)).sum()))
    least = ordered[count - 1]
    better, equal = close[scores[close] > least], close[scores[close] == least]
    kept = np.concatenate([sure, better, equal[: count - better.size]])
    return kept if ids is None else ids[kept]


def _edge(weights: Row, wanted: float) -> tuple[Ids, Ids]:
    """Return the indices that are certainly in the nucleus of weight `wanted`, and a few indices that may be in it."""
    near = np.flatnonzero(weights >= NEAR)
    if near.size <= FEW and float(weights[near].sum()) >= wanted:
        return near[:0], near
    steps = weights.view(np.uint32) >> np.uint32(17)  # 64 bins per power of two, ordered by weight
    above = np.bincount(steps, weights)[::-1].cumsum()[::-1]
    step = int((above >= wanted).sum()) - 1  # `above` decreases; -1 if rounding puts the total below `wanted`
    return np.flatnonzero(steps > step), np.flatnonzero(steps == step)


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
    """Return the 64-bit key of a random draw; `place` holds the choice, the position and further draw numbers."""
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
    """Apply SplitMix64's finalizer to each element of an array, with products that wrap around."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
