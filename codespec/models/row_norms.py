"""Norms of transformers' layers, recomputed row by row for `exact` mode on a GPU.

torch's mean on a GPU depends on the number of rows. A trial finds which norms have a supported formula, and whether the
weight is an offset from zero (Llama) or from one (Gemma).
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from codespec.models.rowwise import rms_norm

PROBE_ROWS = 3
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.005}


class RowNorm(nn.Module):
    """Root-mean-square norm over the last dimension, times a weight [size].

    With `centered`, the mean is subtracted first, in one torch kernel that processes rows one by one.
    """

    def __init__(self, weight: Tensor, eps: float, *, centered: bool = False) -> None:
        super().__init__()
        self.centered = centered
        self.register_buffer("weight", weight, persistent=False)
        self.eps = eps

    def forward(self, values: Tensor) -> Tensor:
        """Normalize values [*, size], in their dtype."""
        assert isinstance(self.weight, Tensor)
        rows = values.reshape(-1, values.shape[-1])
        if self.centered:
            normed = layer_norm(rows.float(), self.weight.shape, self.weight.float(), None, self.eps)
        else:
            normed = rms_norm(rows, self.weight, self.eps)
        return normed.to(values.dtype).view(values.shape)


def replace_norms(model: nn.Module) -> tuple[str, ...]:
    """Replace in place every norm with a supported formula, except torch's own LayerNorm.

    Return the class names of other norms, which are left unchanged.
    """
    left: set[str] = set()
    made: dict[int, nn.Module | None] = {}
    for parent in [m for m in model.modules() if m._modules]:
        for name, child in list(parent._modules.items()):
            if child is None or child._modules or isinstance(child, nn.LayerNorm):
                continue
            if id(child) not in made:
                made[id(child)] = _alike(child)
            if (norm := made[id(child)]) is not None:
                setattr(parent, name, norm)
            elif "Norm" in type(child).__name__:
                left.add(type(child).__name__)
    return tuple(sorted(left))


@torch.no_grad()
def _alike(module: nn.Module) -> RowNorm | None:
    """Return a norm that computes the same as the module, or None."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    takes = inspect.signature(module.forward).parameters  # a second input (a gate) is unsupported
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float) or len(takes) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = 1.0 + torch.randn(PROBE_ROWS, len(weight), generator=generator)  # nonzero mean, for centered norms
    rows = drawn.to(weight.device, weight.dtype)
    wanted = module(rows).float()
    own = weight.detach()
    norms = (RowNorm(own, eps), RowNorm(1.0 + own.float(), eps), RowNorm(own, eps, centered=True))
    gaps = [float((norm(rows).float() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) for norm in norms]
    return norms[gaps.index(min(gaps))] if min(gaps) <= TOLERANCE[weight.dtype] else None
