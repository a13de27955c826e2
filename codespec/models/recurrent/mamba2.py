"""Mamba2 (Dao and Gu 2024, "Transformers are SSMs"), as in Mamba2, Bamba and GraniteMoeHybrid.

A head's state S [head size, state size] decays and adds the input: S ← e^(A·dt)·S + dt·x ⊗ B; the output is S·C + D·x.
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
MULTIPLIED = "ssm_in_multiplier"  # Falcon-H1 scales the parts of its projection


class Mamba2(RecurrentLayer):
    """A Mamba2 layer with transformers' weights."""

    in_proj: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor
    skip: Tensor

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
        self.register_buffer("rate", -mixer.A_log.detach().float().exp(), persistent=False)
        self.register_buffer("step_bias", mixer.dt_bias.detach().float(), persistent=False)
        self.register_buffer("skip", mixer.D.detach().float()[:, None], persistent=False)
        self.shape = StateShape((self.heads, self.size, self.state_size), self.history, self.channels + self.heads)
        self.outputs = (self.heads, self.size, 1)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of a Mamba2 layer."""
        known = names_of(mixer) == PARTS and hasattr(mixer.norm, "group_size") and not hasattr(mixer, MULTIPLIED)
        return known and isinstance(getattr(mixer, "time_step_limit", None), tuple | list)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return x, B, C and the time steps' inputs side by side, and the output gate [N, inner]."""
        both: Tensor = self.in_proj(hidden)
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
        """Add D·x, apply the gate, normalize each group, and project."""
        assert added is not None
        rows = (out[..., 0] + added).flatten(1) * steady(functional.silu, gate.float().contiguous())
        split = rows.view(len(rows), -1, self.norm.group_size)
        normed = (split * inverse_rms(split, self.norm.variance_epsilon)).flatten(1).to(dtype)
        projected: Tensor = self.out_proj((self.norm.weight * normed).to(dtype))
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
