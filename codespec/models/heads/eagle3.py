"""An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840): one layer that maps a token and a state to the next state and to
the logits of the token after the next.

At position t the state is the target's, fused from a low, a middle and a high layer, and the token is the one at t + 1.
Beyond the target's positions the head reads its own states instead. Weights have the names of the public repository.
The caller keeps keys, values and states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codespec.models.heads.config import HeadConfig
from codespec.models.heads.parts import Angles, Mlp, Norm, Projections, draw_weights


class Eagle3Layer(nn.Module):
    """The layer, split into the parts before and after attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.epsilon)
        self.hidden_norm = Norm(config.hidden_size, config.epsilon)
        self.self_attn = Projections(config, 2 * config.hidden_size, normed=False)
        self.post_attention_layernorm = Norm(config.hidden_size, config.epsilon)
        self.mlp = Mlp(config)

    def read(self, embedded: Tensor, states: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, heads, size], keys and values [N, kv heads, size] of token embeddings and states [N,
        hidden].
        """
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], dim=-1)
        return self.self_attn.queries(both, angles), *self.self_attn.keys_values(both, angles)

    def finish(self, states: Tensor, seen: Tensor) -> Tensor:
        """Return the next states [N, hidden], given the states and the attention output [N, heads, size]."""
        rows = states + self.self_attn.out(seen)
        mixed: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return mixed


class Eagle3(nn.Module):
    """The head. `lm_head` is its own or, if its files have none, the target's rows for the draft vocabulary."""

    def __init__(self, config: HeadConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.layers) * config.target_size, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = Norm(config.hidden_size, config.epsilon)
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, config.draft_vocab, bias=False, device="meta")
        draw_weights(nn.ModuleList([self.fc, self.midlayer]), seed)

    def fuse(self, features: Tensor) -> Tensor:
        """Project the target's features [N, layers, target size] to states [N, hidden]."""
        fused: Tensor = self.fc(features.flatten(1))
        return fused

    def logits(self, states: Tensor) -> Tensor:
        """Return logits [N, draft vocabulary] of the token after the one that was read with the states."""
        found: Tensor = self.lm_head(self.norm(states))
        return found
