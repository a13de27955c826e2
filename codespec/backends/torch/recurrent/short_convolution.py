"""Gated short convolutions, as in LFM2: out = C · conv(B · x). Their only state is the last few rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from codespec.backends.torch.recurrent.layer import RecurrentLayer, Step, names_of
from codespec.backends.torch.recurrent.states import StateShape

PARTS = {"conv", "in_proj", "out_proj"}


class ShortConvolution(RecurrentLayer):
    """A gated convolution over each channel, with transformers' weights."""

    activated = False

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv)
        self.in_proj, self.out_proj = mixer.in_proj, mixer.out_proj
        self.shape = StateShape((1,), self.history, self.channels)
        self.outputs = (self.channels,)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer is one of LFM2's."""
        return names_of(mixer) == PARTS and isinstance(mixer.conv, nn.Conv1d)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return B · x and C [N, channels]."""
        first, gate, inputs = self.in_proj(hidden).chunk(3, dim=1)
        return first * inputs, gate

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return steps that output the convolved rows."""
        return [partial(step, row) for row in mixed.unbind(0)]

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply the gate and project."""
        projected: Tensor = self.out_proj((gate.float() * out).to(dtype))
        return projected


def step(row: Tensor, source: Tensor, target: Tensor, out: Tensor | None) -> None:
    """Set the row's output; there is no state."""
    if out is not None:
        out.copy_(row)
