"""The target's own choice for each row of logits. Knows logits and one request's settings; knows no drafts.

Greedy is an argmax; sampling is the argmax of processed log-probabilities plus keyed noise, so that a row's choice is a
function of its logits and its place in the text alone. Every operation works row by row: neighbours can't change a
choice. Filters run in the order of transformers: repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import collections.abc
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.types import CompletionRequest
from codespec.verify.noise import gumbel, row_key, token_hashes

FAR = 45.0  # nats below the best: e**-45 never wins against Gumbel noise worth hashing


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: bytes and silent tokens after the prompt, ids before it (for the penalty), ids allowed
    (None: all).
    """

    offset: int
    silent: int = 0
    before: collections.abc.Sequence[int] = ()
    allowed: Tensor | None = None


class Sampler:
    """Chooses for one vocabulary; holds its token hashes."""

    def __init__(self, token_bytes: list[bytes], device: torch.device) -> None:
        self._hashes = token_hashes(token_bytes).to(device)

    def choose(
        self, logits: Tensor, request: CompletionRequest, choice: int, places: collections.abc.Sequence[Place]
    ) -> list[int]:
        """One id a row of logits [rows, vocabulary] (float32; may be changed in place)."""
        for row, place in zip(logits, places, strict=True):
            if request.repetition_penalty != 1.0:
                penalize(row, place.before, request.repetition_penalty)
            if place.allowed is not None:
                restrict(row, place.allowed)
        if request.temperature == 0.0:
            return logits.argmax(dim=1).tolist()
        scores = filtered(logits, request)
        keys = [row_key(request.seed, choice, place.offset, place.silent) for place in places]
        return self._luckiest(scores, torch.tensor(keys, device=logits.device)).tolist()

    def _luckiest(self, scores: Tensor, keys: Tensor) -> Tensor:
        """Argmax of scores plus noise; only ids within FAR of a row's best are hashed."""
        hashes = self._hashes[: scores.shape[1]]
        rows, ids = (scores >= scores.max(dim=1, keepdim=True).values - FAR).nonzero(as_tuple=True)
        lucky = torch.full_like(scores, -torch.inf, dtype=torch.float64)
        lucky[rows, ids] = scores[rows, ids].double() + gumbel(keys[rows], hashes[ids])
        return lucky.argmax(dim=1)


def penalize(row: Tensor, before: collections.abc.Sequence[int], penalty: float) -> None:
    """Repetition penalty in place (Keskar et al. 2019): scores of ids seen before are divided, or multiplied if
    negative.
    """
    seen = torch.tensor(sorted(set(before)), dtype=torch.long, device=row.device)
    scores = row[seen]
    row[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)


def restrict(row: Tensor, allowed: Tensor) -> None:
    """Leaves only the allowed ids, in place."""
    kept = row[allowed]
    row.fill_(-torch.inf)
    row[allowed] = kept


def filtered(logits: Tensor, request: CompletionRequest) -> Tensor:
    """Scores after temperature, top-k, top-p and min-p; what is filtered out is minus infinity."""
    scores = logits / request.temperature
    if 0 < request.top_k < scores.shape[1]:
        least = scores.topk(request.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if request.top_p < 1.0:
        ordered, order = scores.sort(dim=1, descending=True, stable=True)  # ties too are the row's own
        probabilities = ordered.softmax(dim=1)
        beyond = probabilities.cumsum(dim=1) - probabilities >= request.top_p
        scores = scores.masked_fill(beyond.scatter(1, order, beyond), -torch.inf)
    if request.min_p > 0.0:
        best = scores.max(dim=1, keepdim=True).values
        scores = scores.masked_fill(scores < best + torch.log(torch.tensor(request.min_p)), -torch.inf)
    return scores
