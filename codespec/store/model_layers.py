"""Read from a config.json what a model's layers keep for each sequence, and its experts.

The layers decide what a rollback costs: keys and values are cut to a length, while a recurrent state is restored from a
checkpoint and the accepted rows are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codespec.store.model_config import text_config

_SLIDING = ("sliding", "chunked")
_RECURRENT = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "gated_delta", "lightning")
_PURE = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")  # model types without any attention
_BOTH = ("falcon_h1",)  # model types whose every layer has attention and a recurrent state
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")


@dataclass(frozen=True, slots=True)
class Layers:
    """How many layers have full attention, a sliding window, and a recurrent state; experts, and how many run a token.

    A layer with both attention and a recurrent state counts twice.
    """

    attention: int
    sliding: int = 0
    recurrent: int = 0
    experts: int = 0
    chosen: int = 0

    def __str__(self) -> str:
        kinds = {"attention": self.attention, "sliding": self.sliding, "recurrent": self.recurrent}
        return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)

    @property
    def mixture(self) -> str:
        """The experts in words, or "none"."""
        return f"{self.experts}, {self.chosen} of them for each token" if self.experts else "none"

    @property
    def rollback(self) -> str:
        """The cost of a rejected draft, as a phrase."""
        if not self.recurrent:
            return "a length"
        return "replayed rows" if not self.attention + self.sliding else "a length and replayed rows"


def read_layers(config: Mapping[str, Any]) -> Layers:
    """Return what a configuration says about the layers. Unknown settings count as full attention."""
    text = text_config(config)
    count = _number(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    experts, chosen = _number(text, *_EXPERTS), _number(text, *_CHOSEN)
    kinds = _kinds(text, count)
    recurrent = sum(any(word in kind for word in _RECURRENT) for kind in kinds)
    sliding = sum(any(word in kind for word in _SLIDING) for kind in kinds)
    if text.get("model_type") in _BOTH:
        return Layers(count, 0, count, experts, chosen if experts else 0)
    return Layers(len(kinds) - recurrent - sliding, sliding, recurrent, experts, chosen if experts else 0)


def _kinds(text: Mapping[str, Any], count: int) -> list[str]:
    """Return the kind of each layer, from whichever setting a family uses."""
    for key in ("layer_types", "layers_block_type", "block_types"):
        listed = text.get(key)
        if isinstance(listed, list) and listed:
            return [str(kind) for kind in listed]
    if str(text.get("model_type") or "").startswith(_PURE):
        return ["mamba"] * count
    every, place = _number(text, "full_attention_interval", "attn_layer_period"), text.get("attn_layer_offset")
    at = place if isinstance(place, int) else every - 1
    listed = text.get("attn_layer_indices")
    if every > 1 or isinstance(listed, list):
        chosen = set(listed) if isinstance(listed, list) else {n for n in range(count) if n % every == at}
        return ["attention" if number in chosen else "mamba" for number in range(count)]
    slides = text.get("sliding_window") and text.get("use_sliding_window", True)
    return ["sliding_attention" if slides else "full_attention"] * count


def _number(values: Mapping[str, Any], *names: str) -> int:
    found = (values.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)
