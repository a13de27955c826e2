"""Rotary embeddings whose frequencies depend on a sequence's length, chosen for each request.

In transformers, `longrope` and `dynamic` frequencies depend on the longest sequence of the batch, so a long sequence
changes the results of a short one (measured: by 92 % on Phi-3). In codespec, the frequencies of a request are set at
admission for its maximum length, so neither a rollback nor another sequence can change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from codespec.backends.torch.attention import Seam
from codespec.backends.torch.linear import replace_modules
from codespec.errors import ModelError

VARIANTS = ("longrope", "dynamic")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # how a model lays out the angles of its rotated pairs
    "halves": lambda angles: torch.cat([angles, angles], dim=-1),
    "neighbours": lambda angles: angles.repeat_interleave(2, dim=-1),
    "once": lambda angles: angles,
}


class RequestRotary(nn.Module):
    """A rotary embedding with frequencies for each slot, which are looked up for the rows of a forward pass."""

    def __init__(self, replaced: Any, seam: Seam) -> None:
        super().__init__()
        self.config = config = replaced.config
        self.seam = seam
        self.variant: str = config.rope_parameters["rope_type"]
        parameters = config.rope_parameters
        self.limit: int = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        self.layout = self._find_layout(replaced)

    def frequencies(self, length: int) -> tuple[Tensor, float]:
        """Return inverse frequencies [rotary_dim / 2] and a scale for a request that may grow to `length` tokens."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # takes seconds

        length = self.key(length) if self.variant == "dynamic" else self.limit + self.key(length)
        inverse, scale = ROPE_INIT_FUNCTIONS[self.variant](self.config, torch.device("cpu"), seq_len=length)
        return inverse.float(), float(scale)

    def key(self, length: int) -> int:
        """Return a key for the frequencies of a request that may grow to `length`. Equal keys give equal rotations."""
        return max(length, self.limit) if self.variant == "dynamic" else int(length > self.limit)

    def allocate(self, slots: int, device: torch.device) -> None:
        """Give every slot the frequencies of a short request."""
        inverse, scale = self.frequencies(1)
        self.inverse = inverse.repeat(slots, 1).to(device)  # [slots, rotary_dim / 2]
        self.scale = torch.full((slots, 1), scale, device=device)

    def admit(self, slot: int, length: int) -> None:
        """Set the frequencies of a slot for a request that may grow to `length` tokens."""
        inverse, scale = self.frequencies(length)
        self.inverse[slot], self.scale[slot] = inverse.to(self.inverse.device), scale

    def forward(self, inputs: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, N, rotary_dim] for positions [1, N]."""
        assert self.seam.context is not None
        inverse, scale = self.inverse[self.seam.context.slots], self.scale[self.seam.context.slots]
        angles = LAYOUTS[self.layout](position_ids[0, :, None].float() * inverse)[None]
        cosine, sine = angles.cos() * scale, angles.sin() * scale
        return cosine.to(inputs.dtype), sine.to(inputs.dtype)

    def _find_layout(self, replaced: Any) -> str:
        """Find the layout in LAYOUTS that reproduces the model's own rotary embedding."""
        positions = torch.arange(4, device=replaced.inv_freq.device)
        wanted = replaced(torch.zeros(1, device=positions.device), positions[None])
        inverse, scale = self.frequencies(1)
        angles = positions[:, None].cpu() * inverse
        for name, lay_out in LAYOUTS.items():
            cosine = lay_out(angles).cos() * scale
            alike = isinstance(wanted, tuple) and wanted[0].shape[1:] == cosine.shape
            if alike and torch.allclose(wanted[0][0].cpu(), cosine, atol=0.05):
                return name
        what = f"{type(replaced).__name__} lays out its angles in an order that codespec does not know"
        raise ModelError(what, "choose a model with another rotary embedding")


def replace_rotary(model: nn.Module, seam: Seam) -> RequestRotary | None:
    """Replace the model's rotary embedding if it depends on the length; return the replacement, or None."""
    made: list[RequestRotary] = []

    def make(layer: nn.Module) -> nn.Module | None:
        variant = getattr(layer, "rope_type", None)
        if isinstance(variant, dict) and any(v in VARIANTS for v in variant.values()):
            what = "The layers of this model use several length-dependent rotary variants, which is not supported"
            raise ModelError(what, "choose a model with only one rotary variant")
        if variant not in VARIANTS:
            return None
        if not made:
            made.append(RequestRotary(layer, seam))
        return made[0]

    replace_modules(model, make)
    return made[0] if made else None
