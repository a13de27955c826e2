"""The target's own log-probabilities, before penalty, temperature and filters.

Every row is computed separately, so a token's value depends neither on neighbouring rows nor on the draft.
"""

from __future__ import annotations

import collections.abc

from torch import Tensor

from codespec.contract.types import TokenLogprob


def own_logprobs(logits: Tensor) -> list[Tensor]:
    """Return the log-probabilities of each row of logits [rows, vocabulary]."""
    return [row.float().log_softmax(dim=0) for row in logits]


def tell_logprobs(
    rows: collections.abc.Sequence[Tensor], committed: collections.abc.Sequence[int], first: int, top: int
) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the committed tokens, each with the `top` most likely ids.

    `first` is the index of the first committed token in its completion.
    """
    told = []
    for place, (row, token) in enumerate(zip(rows, committed, strict=False), first):
        best = row.topk(min(top, row.numel()))  # sorted by value; the order of ties is deterministic for a row
        likeliest = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        told.append(TokenLogprob(place, token, float(row[token]), likeliest))
    return tuple(told)
