"""Log-probabilities for those who ask: the target's own, before penalty, temperature and filters. Knows logits and ids.

Every row is computed by itself, so that a token's number depends neither on neighbours nor on what was drafted.
"""

from __future__ import annotations

import collections.abc

from torch import Tensor

from codespec.types import TokenLogprob


def own_logprobs(logits: Tensor) -> list[Tensor]:
    """The log-probabilities of each row of logits [rows, vocabulary]."""
    return [row.float().log_softmax(dim=0) for row in logits]


def tell_logprobs(
    rows: collections.abc.Sequence[Tensor], committed: collections.abc.Sequence[int], first: int, top: int
) -> tuple[TokenLogprob, ...]:
    """What is told of the committed tokens, the first of which is the `first`-th of its completion; `top` likeliest
    ids beside each.
    """
    told = []
    for place, (row, token) in enumerate(zip(rows, committed, strict=False), first):
        best = row.topk(min(top, row.numel()))  # by value; ties in the order that one row always gives
        likeliest = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        told.append(TokenLogprob(place, token, float(row[token]), likeliest))
    return tuple(told)
