"""Regret of fast mode against plain decoding: how far each chosen token's score lies below the best for the same
prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from codespec.api.types import CompletionRequest
from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.text.fim import build_prompt
from codespec.verify.sampling import Hashes, gumbel, row_key, token_hashes

TIE = 0.2  # nats: a smaller gap is a near-tie, a larger one an error


def in_ids(target: TorchModel, requests: Iterable[CompletionRequest], context: int) -> list[CompletionRequest]:
    """Return the requests with their prompts as ids, so that no engine truncates them differently."""
    found = []
    for request in requests:
        prompt = build_prompt(target.tokenizer, None, prefix=request.prefix, budget=context - request.max_tokens)
        found.append(replace(request, prefix="", prompt_ids=tuple(prompt.ids)))
    return found


def regret(target: TorchModel, request: CompletionRequest, chosen: Sequence[int], graph_rows: int = 0) -> float:
    """Return the largest gap between a chosen token's score and the best one, in nats, decoding one token per step.

    Greedy requests are scored by logits, whose differences equal those of log-probabilities; others by logits over the
    temperature plus the request's own noise. Assumes no filters or penalties. Reallocates the target's slots.
    """
    ids = request.prompt_ids
    length = len(ids) + len(chosen) + 1
    target.allocate(2, length, graph_rows)
    target.admit(0, length)
    rows = target.forward([Rows(0, 0, ids)])
    worst, offset, silent = 0.0, 0, 0
    for place, token in enumerate(chosen):
        scores = _scores(target, rows[0], request, offset, silent)
        worst = max(worst, float(scores.max() - scores[token]))
        spelled = target.token_bytes[token]
        offset, silent = offset + len(spelled), 0 if spelled else silent + 1
        rows = target.forward([Rows(0, len(ids) + place, [token])])
    return worst


def _scores(target: TorchModel, row: Tensor, request: CompletionRequest, offset: int, silent: int) -> Tensor:
    """Return the scores [vocabulary] whose argmax is the plain choice."""
    logits = row.cpu().double()
    if request.temperature == 0.0:
        return logits
    noise = gumbel(row_key(request.seed, 0, offset, silent), _hashes(target)[: len(logits)])
    return logits[: len(noise)] / request.temperature + torch.from_numpy(noise)


@cache
def _hashes(target: TorchModel) -> Hashes:
    return token_hashes(target.token_bytes)
