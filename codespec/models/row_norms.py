"""Norms of transformers' layers that are made of torch's sums, computed row by row, for `exact` on a GPU: torch's mean
there depends on the number of rows. Knows modules and two formulas; knows no architecture.

Which norms have these formulas, and whether a weight counts from zero (Llama) or from one (Gemma), is found by
trying.
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
    """Root-mean-square norm over the last dimension, times a weight [size]; `centered`: of the rows less their mean,
    which torch computes in one kernel that takes rows one by one.
    """

    def __init__(self, weight: Tensor, eps: float, *, centered: bool = False) -> None:
        super().__init__()
        self.centered = centered
        self.register_buffer("weight", weight, persistent=False)
        self.eps = eps

    def forward(self, values: Tensor) -> Tensor:
        """Norms of values [*, size], in their dtype."""
        assert isinstance(self.weight, Tensor)
        rows = values.reshape(-1, values.shape[-1])
        if self.centered:
            normed = layer_norm(rows.float(), self.weight.shape, self.weight.float(), None, self.eps)
        else:
            normed = rms_norm(rows, self.weight, self.eps)
        return normed.to(values.dtype).view(values.shape)


def replace_norms(model: nn.Module) -> tuple[str, ...]:
    """Replaces every norm that has one of these formulas in place, but for torch's own LayerNorm. Returns the classes
    of other norms, which are left.
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
    """The norm that computes what the module does; None if there is none."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    takes = inspect.signature(module.forward).parameters  # a gate beside the rows is another function
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float) or len(takes) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    drawn = 1.0 + torch.randn(PROBE_ROWS, len(weight), generator=generator)  # with a mean: centered norms differ
    rows = drawn.to(weight.device, weight.dtype)
    wanted = module(rows).float()
    own = weight.detach()
    norms = (RowNorm(own, eps), RowNorm(1.0 + own.float(), eps), RowNorm(own, eps, centered=True))
    gaps = [float((norm(rows).float() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) for norm in norms]
    return norms[gaps.index(min(gaps))] if min(gaps) <= TOLERANCE[weight.dtype] else None
