"""Modules shared by both kinds of heads: norms, projections, feed-forward and rotary embedding.

Names and arithmetic are those of transformers' Llama and Qwen3, so public weights load by name. All modules take flat
rows [N, …] and are differentiable, because training and drafting use the same code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.models.heads.config import HeadConfig
from codespec.models.rowwise import make_angles, rotate

Angles = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019), in the weight's dtype."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize over the last dimension."""
        wide = rows.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (scaled * self.weight).to(rows.dtype)


class Projections(nn.Module):
    """The four projections of an attention layer; `read` is the input size, `normed` whether Q and K heads have
    norms.
    """

    def __init__(self, config: HeadConfig, read: int, *, normed: bool) -> None:
        super().__init__()
        self.size = config.head_size
        self.scale = config.head_size**-0.5
        self.q_proj = nn.Linear(read, config.heads * config.head_size, bias=False)
        self.k_proj = nn.Linear(read, config.kv_heads * config.head_size, bias=False)
        self.v_proj = nn.Linear(read, config.kv_heads * config.head_size, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_size, config.hidden_size, bias=False)
        self.q_norm: nn.Module = Norm(config.head_size, config.epsilon) if normed else nn.Identity()
        self.k_norm: nn.Module = Norm(config.head_size, config.epsilon) if normed else nn.Identity()

    def queries(self, rows: Tensor, angles: Angles) -> Tensor:
        """Return rotated queries [N, heads, size]."""
        return rotate(self.q_norm(self.q_proj(rows).unflatten(-1, (-1, self.size))), *angles)

    def keys_values(self, rows: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values, [N, kv heads, size] each."""
        keys = rotate(self.k_norm(self.k_proj(rows).unflatten(-1, (-1, self.size))), *angles)
        return keys, self.v_proj(rows).unflatten(-1, (-1, self.size))

    def out(self, seen: Tensor) -> Tensor:
        """Project the attention output [N, heads, size] -> [N, hidden]."""
        mixed: Tensor = self.o_proj(seen.flatten(1))
        return mixed


class Mlp(nn.Module):
    """Gated feed-forward with SiLU (Shazeer 2020)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.down_proj = nn.Linear(config.mlp_size, config.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Apply to rows [N, hidden] -> [N, hidden]."""
        mixed: Tensor = self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return mixed


class HeadRotary:
    """Rotary angles by position, in a table that grows on demand."""

    def __init__(self, config: HeadConfig, device: torch.device) -> None:
        from transformers import LlamaConfig  # slow (seconds), and most targets have no head
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        shape: Any = LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.heads,
            head_dim=config.head_size,
            max_position_embeddings=config.max_positions,
            rope_parameters=dict(config.rope),
        )
        self._rotary = LlamaRotaryEmbedding(shape).to(device)
        self._table: dict[torch.dtype, Angles] = {}

    def at(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Return the arguments of `rotate` for positions [N]: [N, 1, size] each."""
        needed = int(positions.max()) + 1 if positions.numel() else 1
        table = self._table.get(dtype)
        if table is None or len(table[0]) < needed:
            every = torch.arange(1 << (needed - 1).bit_length(), device=positions.device)[None]
            cosine, sine = self._rotary(torch.zeros(1, dtype=dtype, device=positions.device), every)
            table = self._table[dtype] = make_angles(cosine[0, :, None].to(dtype), sine[0, :, None].to(dtype))
        return table[0][positions], table[1][positions]


def draw_weights(module: nn.Module, seed: int) -> None:
    """Initialize every matrix with small random weights from `seed`; norms stay ones."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if weight.ndim == 2:
            last = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.01 if last else 0.02, generator=generator)
