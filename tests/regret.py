"""What plain decoding would regret of a text that was written in fast mode: how far each choice lies below the best one
for the same prefix. Knows logits and the keyed noise; knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.text.fim import build_prompt
from codespec.types import CompletionRequest
from codespec.verify.noise import Hashes, gumbel, row_key, token_hashes

TIE = 0.2  # nat: nearer choices than this are a near-tie; more is a fault


def in_ids(target: LanguageModel, requests: Iterable[CompletionRequest], context: int) -> list[CompletionRequest]:
    """The same requests with their prompts in ids, so that nobody cuts them otherwise."""
    found = []
    for request in requests:
        prompt = build_prompt(target.tokenizer, None, prefix=request.prefix, budget=context - request.max_tokens)
        found.append(replace(request, prefix="", prompt_ids=tuple(prompt.ids)))
    return found


def regret(target: LanguageModel, request: CompletionRequest, chosen: Sequence[int], graph_rows: int = 0) -> float:
    """The most that a choice lies below the best one, in nats, one token a step; takes the target's slots. Without
    filters and penalties: greedy by logits, whose differences are those of log-probabilities; else by logits over the
    temperature plus the request's own noise.
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


def _scores(target: LanguageModel, row: Tensor, request: CompletionRequest, offset: int, silent: int) -> Tensor:
    """What the plain choice is the largest of [vocabulary]."""
    logits = row.cpu().double()
    if request.temperature == 0.0:
        return logits
    noise = gumbel(row_key(request.seed, 0, offset, silent), _hashes(target)[: len(logits)])
    return logits[: len(noise)] / request.temperature + torch.from_numpy(noise)


@cache
def _hashes(target: LanguageModel) -> Hashes:
    return token_hashes(target.token_bytes)
