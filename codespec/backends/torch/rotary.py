"""Rotary variants whose frequencies depend on a sequence's length, chosen per request.

transformers chooses `longrope` and `dynamic` frequencies by the longest row of the *batch*, so a long neighbour changes
a short row (measured: by 92 % on Phi-3). Here each request gets its frequencies at admission, for the length to which
it may grow, and keeps them: neither a rollback nor a neighbour can change them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codespec.backends.torch.attention import Seam
from codespec.backends.torch.linear import replace_modules
from codespec.errors import ModelError

VARIANTS = ("longrope", "dynamic")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # order of the angles of a model's rotated pairs
    "halves": lambda angles: torch.cat([angles, angles], dim=-1),
    "neighbours": lambda angles: angles.repeat_interleave(2, dim=-1),
    "once": lambda angles: angles,
}


@dataclass(frozen=True, slots=True)
class Frequencies:
    """One request's rotation: inverse frequencies [rotary_dim / 2] and a scale. Equal keys mean equal rotation."""

    inverse: Tensor
    scale: float
    key: int


class RequestRotary(nn.Module):
    """Replaces a model's rotary embedding; reads each row's frequencies from the forward's context."""

    def __init__(self, replaced: Any, seam: Seam) -> None:
        super().__init__()
        self.config = config = replaced.config
        self.seam = seam
        self.variant: str = config.rope_parameters["rope_type"]
        parameters = config.rope_parameters
        self.limit: int = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        self.layout = self._find_layout(replaced)

    def frequencies(self, length: int) -> Frequencies:
        """Return the frequencies of a request that may grow to `length` tokens."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # takes seconds

        key = max(length, self.limit) if self.variant == "dynamic" else int(length > self.limit)
        length = key if self.variant == "dynamic" else self.limit + key
        inverse, scale = ROPE_INIT_FUNCTIONS[self.variant](self.config, torch.device("cpu"), seq_len=length)
        return Frequencies(inverse.float(), float(scale), key)

    def forward(self, inputs: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [1, N, rotary_dim] for positions [1, N]."""
        context = self.seam.context
        assert context is not None and context.inverse_frequencies is not None and context.rotary_scale is not None
        angles = LAYOUTS[self.layout](position_ids[0, :, None].float() * context.inverse_frequencies)[None]
        cosine, sine = angles.cos() * context.rotary_scale, angles.sin() * context.rotary_scale
        return cosine.to(inputs.dtype), sine.to(inputs.dtype)

    def _find_layout(self, replaced: Any) -> str:
        """Find the layout in LAYOUTS that reproduces the model's own rotary embedding."""
        positions = torch.arange(4, device=replaced.inv_freq.device)
        wanted = replaced(torch.zeros(1, device=positions.device), positions[None])
        chosen = self.frequencies(1)
        angles = positions[:, None].cpu() * chosen.inverse
        for name, lay_out in LAYOUTS.items():
            cosine = lay_out(angles).cos() * chosen.scale
            alike = isinstance(wanted, tuple) and wanted[0].shape[1:] == cosine.shape
            if alike and torch.allclose(wanted[0][0].cpu(), cosine, atol=0.05):
                return name
        raise ModelError(
            f"{type(replaced).__name__} rotates its heads in a way that codespec can't choose per request",
            "choose a model with another rotary embedding",
        )


class SlotFrequencies:
    """Each slot's frequencies, on the model's device; initially those of a short request."""

    def __init__(self, rotary: RequestRotary, slots: int, device: torch.device) -> None:
        usual = rotary.frequencies(1)
        self._inverse = usual.inverse.repeat(slots, 1).to(device)  # [slots, rotary_dim / 2]
        self._scale = torch.full((slots, 1), usual.scale, device=device)

    def put(self, slot: int, frequencies: Frequencies) -> None:
        """Set the frequencies of a slot."""
        self._inverse[slot] = frequencies.inverse.to(self._inverse.device)
        self._scale[slot] = frequencies.scale

    def of(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return inverse frequencies [N, rotary_dim / 2] and scales [N, 1] for rows of these slots [N]."""
        return self._inverse[slots], self._scale[slots]


def replace_rotary(model: nn.Module, seam: Seam) -> RequestRotary | None:
    """Replace a length-dependent rotary embedding by a `RequestRotary`; return None if there is none."""
    made: list[RequestRotary] = []

    def make(layer: nn.Module) -> nn.Module | None:
        variant = getattr(layer, "rope_type", None)
        if isinstance(variant, dict) and any(v in VARIANTS for v in variant.values()):
            raise ModelError(
                "This model mixes length-dependent rotary variants by layer, which codespec does not support yet",
                "choose a model with one rotary variant",
            )
        if variant not in VARIANTS:
            return None
        if not made:
            made.append(RequestRotary(layer, seam))
        return made[0]

    replace_modules(model, make)
    return made[0] if made else None
