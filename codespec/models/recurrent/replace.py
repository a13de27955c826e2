"""Replace the recurrent layers of a transformers model by ours, which keep a state for each slot."""

from __future__ import annotations

from torch import nn

from codespec.models.recurrent.gated_delta import GatedDeltaNet
from codespec.models.recurrent.layer import RecurrentLayer
from codespec.models.recurrent.mamba2 import Mamba2
from codespec.models.recurrent.short_convolution import ShortConvolution
from codespec.models.recurrent.states import StateShape

Kind = type[GatedDeltaNet] | type[Mamba2] | type[ShortConvolution]
KINDS: tuple[Kind, ...] = (GatedDeltaNet, Mamba2, ShortConvolution)


def replace_recurrent(model: nn.Module) -> int:
    """Replace every recurrent layer of a known kind in place; return their number."""
    found = 0
    for parent in [module for module in model.modules() if module._modules]:
        for name, child in list(parent._modules.items()):
            kind = None if child is None else kind_of(child)
            if kind is not None:
                setattr(parent, name, kind(child))
                found += 1
    return found


def kind_of(module: nn.Module) -> Kind | None:
    """Return the class that computes a layer of transformers', or None."""
    return next((kind for kind in KINDS if kind.fits(module)), None)


def state_shapes(model: nn.Module) -> dict[int, StateShape]:
    """Return the sizes of the states of a model's recurrent layers, by layer."""
    return {layer.layer_idx: layer.shape for layer in model.modules() if isinstance(layer, RecurrentLayer)}
