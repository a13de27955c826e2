"""The Muon optimizer: orthogonalised momentum (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural
networks").

For hidden matrices only; use AdamW for embeddings, norms and heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration, which drives singular values to about 0.7 … 1.2 (Jordan et al.).
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrix [rows, columns], using Newton-Schulz iteration."""
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    # Without bfloat16 instructions, bfloat16 is fifty times slower on a CPU, and the iteration does not need it.
    x = (x / (x.norm() + 1e-7)).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Tensor = (x.T if tall else x).to(matrix.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum; the learning rate is roughly the spectral norm of an update."""

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group["lr"], group["momentum"])

    def _update(self, weight: nn.Parameter, lr: float, momentum: float) -> None:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        average = state["momentum"]
        average.lerp_(weight.grad, 1 - momentum)
        update = orthogonalise(weight.grad.lerp(average, momentum))
        rows, columns = weight.shape
        weight.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)
