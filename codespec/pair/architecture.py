"""Which architectures can write text and be rolled back, as far as config.json tells. Knows names, no code of theirs.

The loader's own ragged check decides in the end; this names what it would refuse before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_RECURRENT_LAYERS = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "gated_delta")
_RECURRENT_MODELS = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "mamba", "nemotron_h", "olmo_hybrid",
    "qwen3_5", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba",
)  # fmt: skip
_OWN_ATTENTION = ("bloom", "codegen", "gptj", "mpt")  # they ignore transformers' attention interface


def text_config(config: Config) -> Config:
    """The part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def architecture(config: Config) -> str:
    """The class a model was saved as, or its type where that is not told."""
    names = config.get("architectures")
    return str(names[0] if isinstance(names, list) and names else config.get("model_type") or "unknown")


def why_unsuitable(config: Config) -> str:
    """What keeps a model from drafting or being drafted for, with the mend; "" if nothing is known against it."""
    name, kind = architecture(config), str(text_config(config).get("model_type") or "")
    if config.get("is_encoder_decoder"):
        return f"{name} is an encoder and a decoder: choose a causal language model"
    if config.get("architectures") and not name.endswith(_WRITES_TEXT):
        return f"{name} does not write text: choose a causal language model"
    listed = text_config(config).get("layer_types")
    layers = {str(layer) for layer in listed} if isinstance(listed, list) else set()
    if kind.startswith(_RECURRENT_MODELS) or any(word in layer for word in _RECURRENT_LAYERS for layer in layers):
        return f"{name} has recurrent layers, whose state can't be rolled back yet: choose an attention-only model"
    if kind in _OWN_ATTENTION:
        return f"{name} does not use transformers' attention interface: choose another architecture"
    return ""


def context_length(config: Config) -> int | None:
    """How many tokens a model reads, where it says so."""
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length"):
        value = text_config(config).get(key)
        if isinstance(value, int):
            return value
    return None
