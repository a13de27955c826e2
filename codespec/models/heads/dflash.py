"""A DFlash head (Chen et al. 2026, arXiv 2602.06036): a few layers that fill a block of masked positions at
once.

The block begins with the last token that is certain; the rest is masked. Every layer attends over the whole block,
both ways, and over the target's features of all positions before it, which enter as keys and values through the layer's
own projections. So it keeps nothing of its own drafts. Weights have the names of the public repository. Knows
arithmetic; who remembers keys is the caller's business.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codespec.models.heads.config import HeadConfig
from codespec.models.heads.parts import Angles, Mlp, Norm, Projections, draw_weights


class DFlashLayer(nn.Module):
    """One layer: attention over context and block, then the feed-forward."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.epsilon)
        self.self_attn = Projections(config, config.hidden_size, normed=True)
        self.post_attention_layernorm = Norm(config.hidden_size, config.epsilon)
        self.mlp = Mlp(config)

    def context(self, context: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Keys and values [N, kv heads, size] of the target's features, as `DFlash.fuse` gives them."""
        return self.self_attn.keys_values(context, angles)

    def read(self, rows: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, heads, size], keys and values [N, kv heads, size] of the block's rows [N, hidden]."""
        normed = self.input_layernorm(rows)
        return self.self_attn.queries(normed, angles), *self.self_attn.keys_values(normed, angles)

    def finish(self, rows: Tensor, seen: Tensor) -> Tensor:
        """The rows behind the layer, from those before it and what attention found [N, heads, size]."""
        rows = rows + self.self_attn.out(seen)
        mixed: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return mixed


class DFlash(nn.Module):
    """The head. `lm_head` is the target's, or its rows of the draft vocabulary. `mask` is the vector of a masked
    position; public heads take the target's vector of their mask token.
    """

    def __init__(self, config: HeadConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.layers) * config.target_size, config.hidden_size, bias=False)
        self.hidden_norm = Norm(config.hidden_size, config.epsilon)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.draft_layers))
        self.norm = Norm(config.hidden_size, config.epsilon)
        self.mask = nn.Parameter(torch.zeros(config.hidden_size))
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, config.draft_vocab, bias=False, device="meta")
        draw_weights(nn.ModuleList([self.fc, self.layers]), seed)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [N, layers, target size] as what every layer reads of the context [N, hidden]."""
        fused: Tensor = self.hidden_norm(self.fc(features.flatten(1)))
        return fused

    def logits(self, rows: Tensor) -> Tensor:
        """Logits [N, draft vocabulary] of the tokens at the rows' own positions."""
        found: Tensor = self.lm_head(self.norm(rows))
        return found
