"""Compute a mixture of experts with ordinary linear layers.

In transformers, the experts of a layer are two stacked parameters [experts, out, in], and a product's shape depends on
how many rows chose an expert, so a row's bits depend on other rows. As linear layers, experts are packed, quantized
and called with a fixed number of rows like every other matrix. The results of a row's experts are summed in the order
in which the router ranked the experts. A router runs transformers' code, except for its matrix product and sigmoids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.backends.torch.linear import TiledLinear, replace_modules
from codespec.backends.torch.rowwise import SteadySigmoids, in_small_pieces, run_inside

STACKED = ("is_transposed", "is_concatenated", "has_gate", "has_bias")  # set by transformers on every experts class


class Experts(nn.Module):
    """The experts of one layer, two linear layers each. `stacked` is transformers' module without the matrices."""

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        self.first = _unstack(stacked, "gate_up_proj" if stacked.has_gate else "up_proj")
        self.second = _unstack(stacked, "down_proj")
        self.stacked = stacked

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of each row's experts [rows, size], for ids and weights [rows, chosen]."""
        rows, chosen = top_k_index.shape
        parts = hidden_states.new_zeros(chosen, rows, hidden_states.shape[-1])
        for expert in top_k_index.unique().tolist():
            row, place = torch.where(top_k_index == expert)
            written = self.second[expert](self._activate(self.first[expert](hidden_states[row])))
            if self.stacked.has_post_expert_norm:
                written = self.stacked.post_expert_norm(written)  # type: ignore[operator]
            parts[place, row] = (written * top_k_weights[row, place, None]).to(parts.dtype)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _activate(self, rows: Tensor) -> Tensor:
        """Apply transformers' gate, or the activation of experts without a gate."""
        stacked: Any = self.stacked
        if hasattr(stacked, "act_fn"):  # a module, which exact mode replaces with a batch-invariant one
            activated: Tensor = stacked._apply_gate(rows) if stacked.has_gate else stacked.act_fn(rows)
            return activated
        return in_small_pieces(stacked._apply_gate, rows)


class RouterProduct(SteadySigmoids):
    """A context in which products with the router's weight are batch-invariant.

    Since some routers first convert their weight to float32, the weight is recognized by its shape, and each dtype has
    a layer of its own.
    """

    def __init__(self, router: nn.Module, packed: bool) -> None:
        super().__init__()
        weight = router.weight
        assert isinstance(weight, Tensor)
        self._shape, self._packed = weight.shape, packed
        self.made = nn.ModuleDict()  # by dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make sigmoids and products with the router's weight batch-invariant; run other functions unchanged."""
        if func is not functional.linear or args[1].shape != self._shape:
            return super().__torch_function__(func, types, args, kwargs)
        rows, weight, bias = (*args, None)[:3]
        name = f"of {str(weight.dtype)[6:]}"
        if name not in self.made:
            self.made[name] = TiledLinear(weight, bias, True, self._packed)
        return self.made[name](rows)


def unstack_experts(model: nn.Module) -> int:
    """Replace every stack of experts with linear layers that share the stack's memory; return the number of stacks."""

    def make(layer: nn.Module) -> nn.Module | None:  # transformers' classes of experts differ only in layout
        stacked = all(hasattr(layer, name) for name in STACKED)
        return Experts(layer) if stacked and isinstance(getattr(layer, "down_proj", None), Tensor) else None

    return len(replace_modules(model, make))


def tile_routers(model: nn.Module, packed: bool) -> None:
    """Make the router batch-invariant in every layer whose experts are linear layers."""
    for parent in list(model.modules()):
        experts = [child for child in parent.children() if isinstance(child, Experts)]
        for child in parent.children():
            weight = child._parameters.get("weight")
            if experts and weight is not None and weight.dim() == 2 and len(weight) == len(experts[0].first):
                product = RouterProduct(child, packed)
                child.products = product.made
                run_inside(product, child)


def has_experts(model: nn.Module, stacked: bool = False) -> bool:
    """Return whether the model has experts; with `stacked`, ignore experts that were replaced with linear layers."""
    return any(_has_stack(module) or (not stacked and isinstance(module, Experts)) for module in model.modules())


def _has_stack(module: nn.Module) -> bool:
    """Return whether a module has stacked matrices, even if its class lacks the STACKED attributes."""
    return not isinstance(module, nn.Conv1d) and any(weight.dim() == 3 for weight in module.parameters(recurse=False))


def _unstack(stacked: nn.Module, name: str) -> nn.ModuleList:
    """Remove the stack `name` from a module and return linear layers that share the memory of its matrices."""
    matrices, biases = getattr(stacked, name), getattr(stacked, f"{name}_bias", None)
    delattr(stacked, name)
    if biases is not None:
        delattr(stacked, f"{name}_bias")
    layers = nn.ModuleList()
    for number, matrix in enumerate(matrices.detach()):
        weight = matrix.t() if stacked.is_transposed else matrix
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=biases is not None, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        if biases is not None:
            layer.bias = nn.Parameter(biases.detach()[number], requires_grad=False)
        layers.append(layer)
    return layers
