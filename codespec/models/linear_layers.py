"""Finds and replaces the linear layers of a transformers model. Knows layers, no shapes of call and no formats."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def replace_linears(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> list[nn.Module]:
    """Puts what `make` returns in the place of every linear layer; tied layers stay tied. Returns what was made."""
    made: dict[int, nn.Module] = {}
    for parent in [m for m in model.modules() if m._modules]:  # a list of the layers too would hold all plain weights
        for name, child in list(parent._modules.items()):  # named_children leaves out a second name of a layer
            if child is not None and (type(child) is nn.Linear or _is_transposed(child)):
                if id(child) not in made:
                    made[id(child)] = make(child)
                setattr(parent, name, made[id(child)])
    return list(made.values())


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """A linear layer's weight [out, in] and bias [out]."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    return weight.t() if _is_transposed(layer) else weight, bias


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is GPT-2's layer, which keeps its weight the other way round. By name: importing it takes seconds."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
