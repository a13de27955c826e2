"""Gated delta nets (Yang et al. 2024, "Gated Delta Networks"), as in Qwen3-Next and Qwen3.5.

A head's state S [key size, value size] decays, forgets what it returns for the key, and learns the value instead:
S ← e^g·S; S ← S + k ⊗ β·(v − kᵀS); the output is qᵀS. transformers computes prompts in chunks of 64 rows, which round
differently in each chunking; one row at a time costs about the same on a CPU (lab/LOG.md).
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

COMMON = {"conv1d", "norm", "out_proj", "dt_bias", "A_log"}
FUSED = {"in_proj_qkvz", "in_proj_ba"}  # Qwen3-Next: interleaved by key head
SINGLE = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}  # Qwen3.5
EPS = 1e-6  # of the norm of keys and queries


class GatedDeltaNet(RecurrentLayer):
    """A gated delta net with transformers' weights."""

    in_proj_qkvz: Any
    in_proj_ba: Any
    in_proj_qkv: Any
    in_proj_z: Any
    in_proj_b: Any
    in_proj_a: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv1d)
        self.fused = hasattr(mixer, "in_proj_qkvz")
        for name in (*(FUSED if self.fused else SINGLE), "out_proj", "norm"):
            setattr(self, name, getattr(mixer, name))
        self.key_heads: int = mixer.num_k_heads
        self.heads: int = mixer.num_v_heads
        self.key_size: int = mixer.head_k_dim
        self.value_size: int = mixer.head_v_dim
        self.register_buffer("rate", -mixer.A_log.detach().float().exp(), persistent=False)
        self.register_buffer("step_bias", mixer.dt_bias.detach().float(), persistent=False)
        self.shape = StateShape(
            (self.heads, self.key_size, self.value_size), self.history, self.channels + 2 * self.heads
        )
        self.outputs = (self.heads, 1, self.value_size)

    @classmethod
    def fits(cls, mixer: nn.Module) -> bool:
        """Return whether the layer has exactly the parts of Qwen3-Next's or Qwen3.5's."""
        return names_of(mixer) in (COMMON | FUSED, COMMON | SINGLE)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries, keys, values, β's and g's inputs side by side, and the output gate [N, heads, value size]."""
        if not self.fused:
            rows = [self.in_proj_qkv(hidden), self.in_proj_b(hidden), self.in_proj_a(hidden)]
            return torch.cat(rows, dim=1), self.in_proj_z(hidden).view(-1, self.heads, self.value_size)
        count, share = len(hidden), self.heads // self.key_heads
        sizes = [self.key_size, self.key_size, share * self.value_size, share * self.value_size]
        mixed = self.in_proj_qkvz(hidden).view(count, self.key_heads, sum(sizes)).split(sizes, dim=2)
        more = self.in_proj_ba(hidden).view(count, self.key_heads, 2 * share).split(share, dim=2)
        query, key, value, gate = (part.reshape(count, -1) for part in mixed)
        rows = [query, key, value, *(part.reshape(count, -1) for part in more)]
        return torch.cat(rows, dim=1), gate.view(count, self.heads, self.value_size)

    def prepare(self, mixed: Tensor, more: Tensor) -> tuple[list[Step], Tensor | None]:
        """Return each row's step. Queries and keys are normalized and repeated for the heads that share them."""
        count, size = len(mixed), self.key_heads * self.key_size
        query, key = (self._normed(mixed[:, at : at + size]) for at in (0, size))
        query = query * self.key_size**-0.5
        value = mixed[:, 2 * size :].reshape(count, self.heads, 1, self.value_size)
        beta = steady(torch.sigmoid, more[:, : self.heads].contiguous()).view(count, self.heads, 1, 1)
        raised = steady(functional.softplus, more[:, self.heads :] + self.step_bias)
        decay = steady(torch.exp, raised * self.rate).view(count, self.heads, 1, 1)
        columns = key.view(count, self.heads, self.key_size, 1)
        parts = (decay, key, columns, value, beta, query)
        return [partial(step, *row) for row in zip(*(part.unbind(0) for part in parts), strict=True)], None

    def finish(self, out: Tensor, added: Tensor | None, gate: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalize each head, apply the gate, and project."""
        rows = out[:, :, 0]
        normed = (rows * inverse_rms(rows, self.norm.variance_epsilon)).to(dtype)
        gated = self.norm.weight * normed * steady(functional.silu, gate.float().contiguous())
        projected: Tensor = self.out_proj(gated.to(dtype).flatten(1))
        return projected

    def _normed(self, rows: Tensor) -> Tensor:
        """Return unit vectors [N, heads, 1, key size] of rows [N, key heads · key size]."""
        split = rows.reshape(len(rows), self.key_heads, self.key_size)
        squares: Tensor = torch.linalg.vecdot(split, split)
        normed = split * squares.add_(EPS).rsqrt_()[..., None]
        return normed.repeat_interleave(self.heads // self.key_heads, dim=1)[:, :, None].contiguous()


def step(
    decay: Tensor,
    key: Tensor,
    column: Tensor,
    value: Tensor,
    beta: Tensor,
    query: Tensor,
    source: Tensor,
    target: Tensor,
    out: Tensor | None,
) -> None:
    """Compute one row: state [heads, key size, value size] `source` into `target`, and its output [heads, 1, value]."""
    torch.mul(source, decay, out=target)
    missed = torch.bmm(key, target).neg_().add_(value).mul_(beta)
    target.baddbmm_(column, missed)
    if out is not None:
        torch.bmm(query, target, out=out)
