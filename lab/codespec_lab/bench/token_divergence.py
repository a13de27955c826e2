"""Measure how far one model's predictions are from another's on the same token ids.

Exact over the whole vocabulary, window by window. Only the logits of one piece of a window are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows

WINDOW, PIECE = 512, 128  # most ids of a window; rows of a forward


@dataclass(frozen=True, slots=True)
class Divergence:
    """Means over `tokens` predicted tokens, in nats.

    kl              KL(reference ‖ candidate) of the next token
    same_first      share of tokens at which both models rank the same token first
    loss_reference  cross-entropy of the text under the reference
    loss_candidate  the same for the candidate
    """

    kl: float
    same_first: float
    loss_reference: float
    loss_candidate: float
    tokens: int


def measure(reference: LanguageModel, candidate: LanguageModel, windows: Sequence[Sequence[int]]) -> Divergence:
    """Compare the models' predictions of every token of each window except the first.

    Free both models' caches and allocate one slot each. Raise ModelError if the vocabularies differ, if a window has
    more than WINDOW ids, if there is nothing to predict, or if the candidate's logits are not finite.
    """
    if reference.choosable != candidate.choosable:
        raise ModelError(
            f"{reference.spec.name} has {reference.choosable} tokens, {candidate.spec.name} {candidate.choosable}: "
            "compare models with one vocabulary."
        )
    longest = max(map(len, windows), default=0)
    if longest > WINDOW:
        raise ModelError(f"A window has {longest} ids: cut texts into windows of at most {WINDOW}.")
    tokens = sum(len(window) - 1 for window in windows if window)
    if not tokens:
        raise ModelError("There is no token to predict: give windows of at least two ids.")
    for model in {reference, candidate}:
        model.allocate(1, WINDOW)
    sums = torch.zeros(4, dtype=torch.float64)
    for window in windows:
        if len(window) > 1:
            sums += _compare(reference, candidate, window)
    kl, same, ours, theirs = (sums / tokens).tolist()
    if kl != kl:
        raise ModelError(
            f"{candidate.spec.name} in {candidate.spec.dtype} computes logits that are not numbers: take another dtype."
        )
    return Divergence(max(0.0, kl), same, ours, theirs, tokens)


@torch.inference_mode()
def _compare(reference: LanguageModel, candidate: LanguageModel, window: Sequence[int]) -> Tensor:
    """Return sums over a window: KL, agreement of the first choice, both losses."""
    sums = torch.zeros(4, dtype=torch.float64)
    inputs, answers = window[:-1], torch.tensor(window[1:])
    begin = 0
    if reference is candidate:  # one slot: compute each row once
        pairs: Iterator[tuple[Tensor, Tensor]] = ((logits, logits) for logits in _pieces(reference, inputs))
    else:
        pairs = zip(_pieces(reference, inputs), _pieces(candidate, inputs), strict=True)
    for ours, theirs in pairs:
        answer = answers[begin : begin + len(ours), None]
        begin += len(ours)
        first = ours.argmax(-1) == theirs.argmax(-1)
        ours, theirs = ours.log_softmax(-1), theirs.log_softmax(-1)
        losses = [-logs.gather(1, answer).sum(dtype=torch.float64) for logs in (ours, theirs)]
        kl = (ours.exp() * (ours - theirs)).sum(-1, dtype=torch.float64).sum()
        sums += torch.stack([kl, first.sum().double(), *losses])
    return sums


def _pieces(model: LanguageModel, ids: Sequence[int]) -> Iterator[Tensor]:
    """Yield the model's logits of all rows on the CPU, PIECE rows at a time, without padding ids."""
    model.admit(0, len(ids))
    for start in range(0, len(ids), PIECE):
        piece = ids[start : start + PIECE]
        yield model.forward([Rows(0, start, piece, keep=len(piece))])[:, : model.choosable].cpu()
