"""Find and replace the linear layers of a transformers model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def replace_linears(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> list[nn.Module]:
    """Replace every linear layer with the result of `make`, keeping tied layers tied. Return the new layers."""
    made: dict[int, nn.Module] = {}
    for parent in [m for m in model.modules() if m._modules]:  # listing leaves would keep all plain weights alive
        for name, child in list(parent._modules.items()):  # named_children omits a layer's second name
            if child is not None and (type(child) is nn.Linear or _is_transposed(child)):
                if id(child) not in made:
                    made[id(child)] = make(child)
                setattr(parent, name, made[id(child)])
    return list(made.values())


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's weight [out, in] and bias [out]."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
    return weight.t() if _is_transposed(layer) else weight, bias


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether this is GPT-2's Conv1D, which stores [in, out]. Compares names: importing it takes seconds."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
