"""Gated delta nets (Yang et al. 2024, "Gated Delta Networks"), as in Qwen3-Next, Qwen3.5 and OLMo-Hybrid.

A head's state S [key size, value size] decays, then the value that it returns for the key is replaced by a new one:
S ← e^g·S; S ← S + k ⊗ β·(v − kᵀS); the output is qᵀS. transformers computes prompts in chunks of 64 rows, and the
rounding depends on where the chunks begin. One row at a time costs about the same on a CPU (lab/LOG.md).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.backends.torch.recurrent.layer import RecurrentLayer, Step, inverse_rms, names_of
from codespec.backends.torch.recurrent.states import StateShape
from codespec.backends.torch.rowwise import steady

COMMON = {"conv1d", "dt_bias", "A_log"}
FUSED = {"in_proj_qkvz", "in_proj_ba", "norm", "out_proj"}  # Qwen3-Next: interleaved by key head
SINGLE = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj"}  # Qwen3.5
SEPARATE = {"q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj", "o_norm", "o_proj"}  # OLMo-Hybrid
EPS = 1e-6  # of the norm of keys and queries


class GatedDeltaNet(RecurrentLayer):
    """A gated delta net with transformers' weights."""

    in_proj_qkvz: Any
    in_proj_ba: Any
    gate: Any
    out_proj: Any
    norm: Any
    rate: Tensor
    step_bias: Tensor

    def __init__(self, mixer: Any) -> None:
        super().__init__(mixer.layer_idx, mixer.conv1d)
        self.fused = hasattr(mixer, "in_proj_qkvz")
        if hasattr(mixer, "q_proj"):
            self.inputs = nn.ModuleList([mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.b_proj, mixer.a_proj])
            self.gate, self.norm, self.out_proj = mixer.g_proj, mixer.o_norm, mixer.o_proj
        else:
            self.norm, self.out_proj = mixer.norm, mixer.out_proj
            if self.fused:
                self.in_proj_qkvz, self.in_proj_ba = mixer.in_proj_qkvz, mixer.in_proj_ba
            else:
                self.inputs = nn.ModuleList([mixer.in_proj_qkv, mixer.in_proj_b, mixer.in_proj_a])
                self.gate = mixer.in_proj_z
        self.most_beta = 2.0 if getattr(mixer, "allow_neg_eigval", False) else 1.0
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
        """Return whether the layer has exactly the parts of Qwen3-Next's, Qwen3.5's or OLMo-Hybrid's."""
        return names_of(mixer) in (COMMON | FUSED, COMMON | SINGLE, COMMON | SEPARATE)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries, keys, values, β's and g's inputs side by side, and the output gate [N, heads, value size]."""
        if not self.fused:
            rows = [layer(hidden) for layer in self.inputs]
            return torch.cat(rows, dim=1), self.gate(hidden).view(-1, self.heads, self.value_size)
        count, share = len(hidden), self.heads // self.key_heads
        sizes = [self.key_size, self.key_size, share * self.value_size, share * self.value_size]
        mixed = self.in_proj_qkvz(hidden).view(count, self.key_heads, sum(sizes)).split(sizes, dim=2)
        more = self.in_proj_ba(hidden).view(count, self.key_heads, 2 * share).split(share, dim=2)
        query, key, value, gate = (part.reshape(count, -1) for part in mixed)
        rows = [query, key, value, *(part.reshape(count, -1) for part in more)]
        return torch.cat(rows, dim=1), gate.view(count, self.heads, self.value_size)

    def prepare(self, mixed: Tensor, more: Tensor) -> list[Step]:
        """Return each row's step. Queries and keys are normalized and repeated for the heads that share them."""
        count, size = len(mixed), self.key_heads * self.key_size
        query, key = (self._normed(mixed[:, at : at + size]) for at in (0, size))
        query = query * self.key_size**-0.5
        value = mixed[:, 2 * size :].reshape(count, self.heads, 1, self.value_size)
        beta = steady(torch.sigmoid, more[:, : self.heads].contiguous()).view(count, self.heads, 1, 1) * self.most_beta
        raised = steady(functional.softplus, more[:, self.heads :] + self.step_bias)
        decay = steady(torch.exp, raised * self.rate).view(count, self.heads, 1, 1)
        columns = key.view(count, self.heads, self.key_size, 1)
        parts = (decay, key, columns, value, beta, query)
        return [partial(step, *row) for row in zip(*(part.unbind(0) for part in parts), strict=True)]

    def finish(self, out: Tensor, gate: Tensor, dtype: torch.dtype) -> Tensor:
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
