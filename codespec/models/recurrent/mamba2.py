"""Mamba2 (Dao and Gu 2024, "Transformers are SSMs"), as in Mamba2, Bamba, GraniteMoeHybrid and Falcon-H1.

A head's state S [head size, state size] decays and adds the input: S ← e^(A·dt)·S + dt·x ⊗ B; the output is S·C + D·x.
Falcon-H1 multiplies the layer's input and each part of its projection by constants, and may leave out the norm.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.models.recurrent.layer import RecurrentLayer, Step, inverse_rms, names_of
from codespec.models.recurrent.states import StateShape
from codespec.models.rowwise import steady

PARTS = {"act", "conv1d", "in_proj", "norm", "out_proj", "dt_bias", "A_log", "D"}
GROUPS = ("group_size", "n_groups")  # a norm over groups of the outputs says their size or their number


class Mamba2(RecurrentLayer):
    """A Mamba2 layer with transformers' weights."""

    in_proj: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    multipliers: Tensor | None

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv1d)
        for name in ("in_proj", "out_proj", "norm"):
            setattr(self, name, getattr(mixer, name))
        self.heads: int = mixer.num_heads
        self.size: int = mixer.head_dim
        self.groups: int = mixer.n_groups
        self.state_size: int = mixer.ssm_state_size
        self.inner: int = mixer.intermediate_size
        self.least_step, self.most_step = mixer.time_step_limit
        self.input_multiplier: float = getattr(mixer, "ssm_in_multiplier", 1.0)
        multipliers = getattr(mixer, "mup_vector", None)
        self.register_buffer("multipliers", None if multipliers is None else multipliers.flatten(), persistent=False)
        self.normed = not isinstance(mixer.norm, nn.Identity)
        self.register_buffer("rate", -mixer.A_log.detach().float().exp(), persistent=False)
        self.register_buffer("step_bias", mixer.dt_bias.detach().float(), persistent=False)
        self.register_buffer("skip", mixer.D.detach().float()[:, None], persistent=False)
        self.shape = StateShape((self.heads, self.size, self.state_size), self.history, self.channels + self.heads)
        self.outputs = (self.heads, self.size, 1)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of a Mamba2 layer."""
        if names_of(mixer) != PARTS or not isinstance(getattr(mixer, "time_step_limit", None), tuple | list):
            return False
        norm: Any = mixer.norm
        gate_first = any(hasattr(norm, name) for name in GROUPS) and not getattr(norm, "norm_before_gate", False)
        return isinstance(norm, nn.Identity) or gate_first

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return x, B, C and the time steps' inputs side by side, and the output gate [N, inner]."""
        if self.multipliers is None:
            both: Tensor = self.in_proj(hidden)
        else:
            both = self.in_proj(hidden * self.input_multiplier) * self.multipliers
        return both[:, self.inner :], both[:, : self.inner]

    def prepare(self, mixed: Tensor, more: Tensor) -> tuple[list[Step], Tensor | None]:
        """Return each row's step, and D·x."""
        count, shared = len(mixed), self.groups * self.state_size
        inputs = mixed[:, : self.inner].reshape(count, self.heads, self.size)
        keys, queries = (self._per_head(mixed[:, at : at + shared]) for at in (self.inner, self.inner + shared))
        length = steady(functional.softplus, more + self.step_bias).clamp_(self.least_step, self.most_step)
        decay = steady(torch.exp, length * self.rate).view(count, self.heads, 1, 1)
        scaled = (inputs * length[:, :, None])[..., None]
        parts = (decay, scaled, keys[:, :, None], queries[..., None])
        steps: list[Step] = [partial(step, *row) for row in zip(*(part.unbind(0) for part in parts), strict=True)]
        return steps, inputs * self.skip

    def finish(self, out: Tensor, added: Tensor | None, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Add D·x, apply the gate, normalize each group if there is a norm, and project."""
        assert added is not None
        rows = (out[..., 0] + added).flatten(1) * steady(functional.silu, gate.float().contiguous())
        if self.normed:
            split = rows.view(len(rows), -1, self.inner // self.groups)
            normed = (split * inverse_rms(split, self.norm.variance_epsilon)).flatten(1).to(dtype)
            rows = self.norm.weight * normed
        projected: Tensor = self.out_proj(rows.to(dtype))
        return projected

    def _per_head(self, rows: Tensor) -> Tensor:
        """Return [N, heads, state size] of rows [N, groups · state size]."""
        split = rows.reshape(len(rows), self.groups, self.state_size)
        return split.repeat_interleave(self.heads // self.groups, dim=1)


def step(
    decay: Tensor, scaled: Tensor, key: Tensor, query: Tensor, source: Tensor, target: Tensor, out: Tensor | None
) -> None:
    """Compute one row: state [heads, size, state size] `source` into `target`, and its output [heads, size, 1]."""
    torch.mul(source, decay, out=target)
    target.baddbmm_(scaled, key)
    if out is not None:
        torch.bmm(target, query, out=out)
