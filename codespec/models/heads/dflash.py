"""A DFlash head (Chen et al. 2026, arXiv 2602.06036): a few layers that fill a block of masked positions in one
forward.

The block begins with the last known token (the anchor); the rest is masked. Every layer attends bidirectionally over
the block, and over the target's features of all earlier positions, which the layer's own projections turn into keys and
values. The head therefore keeps no state of its drafts. Weights have the names of the public repository. The caller
keeps the keys and values.
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
        """Return keys and values [N, kv heads, size] of fused target features, the output of `DFlash.fuse`."""
        return self.self_attn.keys_values(context, angles)

    def read(self, rows: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, heads, size], keys and values [N, kv heads, size] of the block's rows [N, hidden]."""
        normed = self.input_layernorm(rows)
        return self.self_attn.queries(normed, angles), *self.self_attn.keys_values(normed, angles)

    def finish(self, rows: Tensor, seen: Tensor) -> Tensor:
        """Return the layer's output rows [N, hidden], given input rows and the attention output [N, heads, size]."""
        rows = rows + self.self_attn.out(seen)
        mixed: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return mixed


class DFlash(nn.Module):
    """The head.

    `lm_head` is the target's, or its rows for the draft vocabulary. `mask` is the embedding of a masked position;
    public heads use the target's embedding of their mask token.
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
        """Project the target's features [N, layers, target size] to the context [N, hidden] that every layer reads."""
        fused: Tensor = self.hidden_norm(self.fc(features.flatten(1)))
        return fused

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits [N, draft vocabulary] of the tokens at the rows' own positions."""
        found: Tensor = self.lm_head(self.norm(rows))
        return found
