"""The output head and its loss in one piece: knows logits by the chunk, never all [tokens, vocab].

Holding one chunk at a time keeps the work in the processor's caches, which small models on a CPU feel.
The idea is that of fused linear cross-entropy kernels (Hsu et al. 2024, Liger).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100
CHUNK = 512


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients while the logits are at hand, so that backward only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        head = weight.to(hidden.dtype)
        counted = labels != IGNORED
        scale = 1.0 / counted.sum().clamp(min=1)
        total = torch.zeros((), device=hidden.device)
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            loss, d_logits = _chunk_loss(hidden[rows], head, labels[rows], counted[rows], scale)
            total += loss
            torch.mm(d_logits, head, out=d_hidden[rows])
            d_head += d_logits.T @ hidden[rows]
        ctx.save_for_backward(d_hidden, d_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * grads[0].to(d_hidden.dtype), d_head * grads[0], None


def _chunk_loss(hidden: Tensor, head: Tensor, labels: Tensor, counted: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    logits = (hidden @ head.T).float()  # [chunk, vocab]
    peak = logits.amax(dim=1, keepdim=True)
    logits.sub_(peak)
    picked = labels.clamp(min=0)[:, None]
    chosen = logits.gather(1, picked)[:, 0]
    logits.exp_()
    norm = logits.sum(dim=1)
    loss = ((norm.log() - chosen) * counted).sum() * scale
    weight = counted * scale
    logits.mul_((weight / norm)[:, None])
    logits.scatter_add_(1, picked, -weight[:, None])
    return loss, logits.to(hidden.dtype)


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats of the logits `hidden @ weight.T`.

    hidden [N, width], weight [vocab, width], labels [N]; rows whose label is `IGNORED` count for nothing.
    """
    loss: Tensor = _HeadLoss.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return loss
