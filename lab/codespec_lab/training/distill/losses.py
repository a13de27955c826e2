"""The two losses of a drafter (both in DistillSpec, Zhou et al. 2023).

Cross-entropy of the target's text in the drafter's tokens, and forward KL divergence from the target's distributions at
common token boundaries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from codespec_lab.training.distill.lessons import LessonBatch


def text_nats(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the nats of each label [N] from its logits [N, vocabulary]."""
    return cross_entropy(logits.float(), labels, reduction="none")


def forward_kl(logits: Tensor, ids: Tensor, probabilities: Tensor) -> Tensor:
    """Return KL(target ‖ drafter) in nats for each row [N].

    `probabilities` [N, k] are the target's for the drafter's tokens `ids` [N, k]; `logits` [N, vocabulary] are the
    drafter's.
    """
    wanted = probabilities.float()
    wanted = wanted / wanted.sum(dim=1, keepdim=True).clamp(min=1e-9)
    found = logits.float().log_softmax(dim=1).gather(1, ids.long())
    return (torch.xlogy(wanted, wanted) - wanted * found).sum(dim=1)


def total_loss(logits: Tensor, batch: LessonBatch) -> Tensor:
    """Return the weighted mean of both losses over a batch; logits [B × T, vocabulary]. A taught row has weight 1."""
    weights = batch.weights.to(logits.device)
    text = (text_nats(logits[batch.rows], batch.labels.to(logits.device)) * weights).sum()
    taught = forward_kl(logits[batch.taught], batch.ids.to(logits.device), batch.probabilities.to(logits.device)).sum()
    return (text + taught) / (weights.sum() + len(batch.taught)).clamp(min=1e-6)
