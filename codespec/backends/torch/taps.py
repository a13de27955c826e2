"""Capture the outputs of selected layers during a forward.

Layer i is the residual stream after layer i, counted from 0. Captured outputs are copies: the logits are computed from
the same numbers in the same order with or without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codespec.errors import ModelError


class Taps:
    """Captures the outputs of `layers`, in this order, in each forward: `width` values per row and layer."""

    def __init__(self, layers: Sequence[int], width: int) -> None:
        self.layers = tuple(layers)
        self.width = width
        self._wanted = frozenset(layers)
        self._kept: dict[int, Tensor] = {}

    def see(self, layer: int, rows: Tensor, fed: Tensor | None = None) -> None:
        """Record a layer's output: rows [N, width], plus `fed` if its addition is still pending."""
        if layer in self._wanted:
            self._kept[layer] = rows if fed is None else rows + fed

    def take(self, dtype: torch.dtype) -> Tensor | None:
        """Return the last forward's outputs: [N, layers, width].

        Return None if it ran only some of the layers, as trials of call shapes do.
        """
        kept, self._kept = self._kept, {}
        if len(kept) < len(self.layers):
            return None
        return torch.stack([kept[layer].to(dtype) for layer in self.layers], dim=1)


def attach_taps(network: Any, taps: Taps) -> None:
    """Make a lean or transformers network report its layers' outputs to `taps`, replacing earlier taps.

    Raises ModelError if its layers can't be found or there are too few of them.
    """
    blocks = getattr(network, "blocks", None)
    layers = blocks if blocks is not None else _layers_of(network)
    if not 0 <= min(taps.layers) <= max(taps.layers) < len(layers):
        raise ModelError(
            f"The head reads layer {max(taps.layers)} and the target has {len(layers)} layers",
            "give a head that was trained for this target",
        )
    if blocks is not None:
        network.taps = taps
        return
    for handle in getattr(network, "codespec_taps", ()):
        handle.remove()
    network.codespec_taps = [layers[index].register_forward_hook(_hook(taps, index)) for index in taps.layers]


def _layers_of(network: Any) -> nn.ModuleList:
    decoder = network.get_decoder() if hasattr(network, "get_decoder") else network
    layers = getattr(decoder, "layers", getattr(decoder, "h", None))
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(
            f"A head can't read the layers of {type(network).__name__}",
            "remove the setting `head`, or choose another target",
        )
    return layers


def _hook(taps: Taps, layer: int) -> Any:
    def see(module: nn.Module, inputs: Any, output: Any) -> None:
        rows = output[0] if isinstance(output, tuple) else output
        taps.see(layer, rows[0])  # a flat forward is a batch of one

    return see
