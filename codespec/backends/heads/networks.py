"""The networks of both kinds of heads, EAGLE-3 and DFlash, and the layers that they share.

Modules are named as in the public repositories, so that public weights load by name, and compute the same functions as
Llama and Qwen3 in transformers. All modules take flat rows [N, …]; the caller stores keys, values and states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from codespec.backends.heads.config import HeadConfig
from codespec.backends.torch.lean import AngleTable
from codespec.backends.torch.rowwise import rotate

Angles = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """A root-mean-square norm (Zhang and Sennrich 2019) in float32, returned in the dtype of the rows."""

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
    """The four attention projections for inputs of size `read`; if `normed`, query and key heads are normalized."""

    def __init__(self, config: HeadConfig, read: int, *, normed: bool) -> None:
        super().__init__()
        self.size = config.head_size
        self.q_proj = nn.Linear(read, config.heads * config.head_size, bias=False)
        self.k_proj = nn.Linear(read, config.kv_heads * config.head_size, bias=False)
        self.v_proj = nn.Linear(read, config.kv_heads * config.head_size, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_size, config.hidden_size, bias=False)
        self.q_norm: nn.Module = Norm(config.head_size, config.epsilon) if normed else nn.Identity()
        self.k_norm: nn.Module = Norm(config.head_size, config.epsilon) if normed else nn.Identity()

    def keys_values(self, rows: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values, [N, kv heads, size] each."""
        keys = rotate(self.k_norm(self.k_proj(rows).unflatten(-1, (-1, self.size))), *angles)
        return keys, self.v_proj(rows).unflatten(-1, (-1, self.size))


class Mlp(nn.Module):
    """A gated feed-forward network with SiLU (Shazeer 2020)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.mlp_size, bias=False)
        self.down_proj = nn.Linear(config.mlp_size, config.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Apply the network to rows [N, hidden] -> [N, hidden]."""
        mixed: Tensor = self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return mixed


def make_angle_table(config: HeadConfig, device: torch.device) -> AngleTable:
    """Create a table of the cosines and sines of a head's rotary embedding."""
    from transformers import LlamaConfig  # slow (seconds), and most targets have no head
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    shape: Any = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.heads,
        head_dim=config.head_size,
        max_position_embeddings=config.max_positions,
        rope_parameters=dict(config.rope),
    )
    return AngleTable(LlamaRotaryEmbedding(shape).to(device))


class Layer(nn.Module):
    """A decoder layer without the attention itself; `read` is the input size of the layer's projections."""

    def __init__(self, config: HeadConfig, read: int, *, normed: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.epsilon)
        self.self_attn = Projections(config, read, normed=normed)
        self.post_attention_layernorm = Norm(config.hidden_size, config.epsilon)
        self.mlp = Mlp(config)

    def project(self, rows: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, heads, size], keys and values [N, kv heads, size] of inputs [N, read]."""
        layer = self.self_attn
        queries = rotate(layer.q_norm(layer.q_proj(rows).unflatten(-1, (-1, layer.size))), *angles)
        return queries, *layer.keys_values(rows, angles)

    def finish(self, rows: Tensor, seen: Tensor) -> Tensor:
        """Return the layer's output rows [N, hidden], given input rows and the attention output [N, heads, size]."""
        rows = rows + self.self_attn.o_proj(seen.flatten(1))
        mixed: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return mixed


class Eagle3Layer(Layer):
    """The layer of an EAGLE-3 head, which reads concatenated token embeddings and states [N, hidden]."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config, 2 * config.hidden_size, normed=False)
        self.hidden_norm = Norm(config.hidden_size, config.epsilon)

    def read(self, embedded: Tensor, states: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of token embeddings and states [N, hidden]."""
        return self.project(torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], dim=-1), angles)


class Eagle3(nn.Module):
    """An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840).

    The head has one layer, which reads the next token and the target's state at a position, fused from a low, a middle
    and a high layer. The layer returns the next state and predicts the token after that. At positions that the
    target has not computed, the head reads its own states.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(config.layers) * config.target_size, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = Norm(config.hidden_size, config.epsilon)
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, config.draft_vocab, bias=False, device="meta")

    def fuse(self, features: Tensor) -> Tensor:
        """Project the target's features [N, layers, target size] to states [N, hidden]."""
        fused: Tensor = self.fc(features.flatten(1))
        return fused

    def logits(self, states: Tensor) -> Tensor:
        """Return logits [N, draft vocabulary] of each row's next token, given the layer's output states [N, hidden]."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


class DFlash(nn.Module):
    """A DFlash head (Chen et al. 2026, arXiv 2602.06036), which fills a block of masked positions in one forward pass.

    The block begins with the last known token (the anchor); the rest is masked. Every layer attends bidirectionally
    over the block, and over the target's features of all earlier positions, which the layer's own projections turn into
    keys and values. The head therefore stores no state for its drafts.

    If the head's files lack `lm_head` or `mask`, the target's output layer or embedding of the mask token is used.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(config.layers) * config.target_size, config.hidden_size, bias=False)
        self.hidden_norm = Norm(config.hidden_size, config.epsilon)
        self.layers = nn.ModuleList(Layer(config, config.hidden_size, normed=True) for _ in range(config.draft_layers))
        self.norm = Norm(config.hidden_size, config.epsilon)
        self.mask = nn.Parameter(torch.zeros(config.hidden_size))
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, config.draft_vocab, bias=False, device="meta")

    def fuse(self, features: Tensor) -> Tensor:
        """Project the target's features [N, layers, target size] to the context [N, hidden] that every layer reads."""
        fused: Tensor = self.hidden_norm(self.fc(features.flatten(1)))
        return fused

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits [N, draft vocabulary] of the tokens at the positions of the rows [N, hidden]."""
        logits: Tensor = self.lm_head(self.norm(rows))
        return logits
