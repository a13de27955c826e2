"""The target's own choice for each row of logits. Knows logits and one request's settings; knows no drafts.

Greedy is an argmax; sampling is the argmax of processed log-probabilities plus keyed noise, so that a row's choice is a
function of its logits and its position in the text alone. Every row is worked on by itself, in the processor's memory:
neighbours can't change a choice. Filters run in the order of transformers: repetition penalty, temperature, top-k,
top-p, min-p.
"""

from __future__ import annotations

import collections.abc
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from codespec.types import CompletionRequest
from codespec.verify.noise import Floats, coarse, gumbel, halves, least_coarse, row_key, token_hashes

Row = NDArray[np.float32]  # one row of logits or probabilities [vocabulary]
Ids = NDArray[np.int64]

FEW = 512  # so many ids are hashed without asking which of them may win
BOUND = 6.2  # nats of noise, which one id in 500 has
MARGIN = 1e-3  # nats, for rounding
NEAR = math.exp(-7.0)  # of the best weight
REACHES = (1.0, 2.0, 4.0, 8.0, 16.0, math.inf)  # nats below the best within which the head of a row is looked for


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row stands: bytes and silent tokens after the prompt, ids before it (for the penalty), ids allowed
    (None: all).
    """

    offset: int
    silent: int = 0
    before: collections.abc.Sequence[int] = ()
    allowed: collections.abc.Sequence[int] | None = None


class Sampler:
    """Chooses for one vocabulary; holds its token hashes."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self._hashes = token_hashes(token_bytes)
        self._halves = halves(self._hashes)
        self._all = np.arange(len(token_bytes))

    def choose(
        self, logits: Tensor, request: CompletionRequest, choice: int, positions: collections.abc.Sequence[Position]
    ) -> list[int]:
        """One id a row of logits [rows, vocabulary] (float32; may be changed in place)."""
        rows = logits.cpu().numpy()
        for row, position in zip(rows, positions, strict=True):
            prepare(row, request, position)
        return [self.pick(row, request, choice, position) for row, position in zip(rows, positions, strict=True)]

    def pick(self, row: Row, request: CompletionRequest, choice: int, position: Position) -> int:
        """The choice in a row that was prepared."""
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
        """Those of many ids that may win: all with more noise than BOUND, and all whose score is so near to the best
        of these that less noise than BOUND may do.
        """
        whole = ids.size == row.size
        scores = row if whole else row[ids]
        hashes = (self._halves[0][: row.size], self._halves[1][: row.size])
        bits = coarse(key, hashes if whole else (hashes[0][ids], hashes[1][ids]))
        first = np.append(np.flatnonzero(bits >= least_coarse(BOUND)), scores.argmax())
        best = self._noisy(row, ids[first], temperature, key).max()
        near = np.flatnonzero(scores >= (best - BOUND - MARGIN) * temperature)
        contenders: Ids = ids[np.concatenate([first, near])]
        return contenders


def prepare(row: Row, request: CompletionRequest, position: Position) -> None:
    """Penalty and restriction, in place; once a row."""
    if request.repetition_penalty != 1.0:
        penalize(row, position.before, request.repetition_penalty)
    if position.allowed is not None:
        restrict(row, position.allowed)


def penalize(row: Row, before: collections.abc.Sequence[int], penalty: float) -> None:
    """Repetition penalty in place (Keskar et al. 2019): scores of ids seen before are divided, or multiplied if
    negative; once, however often they were said.
    """
    seen = np.array(before, dtype=np.int64)
    scores = row[seen]
    row[seen] = np.where(scores < 0, scores * penalty, scores / penalty)


def restrict(row: Row, allowed: collections.abc.Sequence[int]) -> None:
    """Leaves only the allowed ids, in place."""
    kept = np.array(allowed, dtype=np.int64)
    scores = row[kept]
    row.fill(-np.inf)
    row[kept] = scores


def probabilities(row: Row, request: CompletionRequest) -> Row:
    """Probabilities [vocabulary] that a prepared row's choice has under the request's temperature and filters."""
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
    """The id at `share` (0 to 1) of the weights, laid end to end."""
    ends = weights.cumsum(dtype=np.float64)
    return int(np.searchsorted(ends, share * ends[-1], side="right"))


def survivors(row: Row, request: CompletionRequest) -> Ids | None:
    """The ids that top-k, top-p and min-p leave; None for all."""
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
    """The best ids; more where several are equal to the last."""
    for reach in REACHES:
        head = np.flatnonzero(row >= row.max() - reach)
        if head.size >= count:
            break
    scores = row[head]
    kept: Ids = head[scores >= np.partition(scores, -count)[-count]]
    return kept


def _nucleus(row: Row, ids: Ids | None, temperature: float, share: float) -> Ids:
    """The best ids (of these) before which less than `share` of the probability lies; of equal ones the first."""
    scores = row if ids is None else row[ids]
    weights = np.exp((scores - row.max()) / temperature)
    wanted = share * float(weights.sum(dtype=np.float64))
    sure, close = _edge(weights, wanted)
    if not close.size:  # a share within a rounding error of 1: all of them
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
    """Places whose weights surely are among the greatest that make up `wanted`, and a few in which those end."""
    near = np.flatnonzero(weights >= NEAR)
    if near.size <= FEW and float(weights[near].sum()) >= wanted:
        return near[:0], near
    steps = weights.view(np.uint32) >> np.uint32(17)  # 64 steps for each power of two, in the order of the weights
    above = np.bincount(steps, weights)[::-1].cumsum()[::-1]
    step = int((above >= wanted).sum()) - 1  # `above` falls; -1 where rounding leaves even all of them below `wanted`
    return np.flatnonzero(steps > step), np.flatnonzero(steps == step)
