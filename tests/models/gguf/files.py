"""Small GGUF files, valid and broken: a random transformers model written like `llama.cpp`'s converter does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.models.gguf.llama_cpp_ids import add_byte_level, finish

HIDDEN, MIDDLE, LAYERS, HEADS, GROUPS, LENGTH = 64, 96, 2, 4, 2, 256
PRE = "smollm"
PLACES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class Case:
    """A GGUF architecture, the transformers class and configuration it is made from, and settings that differ from the
    usual.
    """

    name: str
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def _heads(name: str, size: int) -> dict[str, int]:
    return {f"{name}.attention.key_length": size, f"{name}.attention.value_length": size}


CASES = {
    "llama": Case("llama", "Llama"),
    "untied": Case("llama", "Llama", {"tie_word_embeddings": False}),
    "biased": Case("llama", "Llama", {"attention_bias": True, "mlp_bias": True}),
    "linear": Case(
        "llama",
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0}},
        {"llama.rope.freq_base": 100000.0, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "yarn": Case(
        "qwen2",
        "Qwen2",
        {"rope_parameters": YARN},
        {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
        | {"qwen2.rope.scaling.original_context_length": 64},
    ),
    "llama3": Case("llama", "Llama", {"rope_parameters": LLAMA3}, {"llama.rope.freq_base": 500000.0}),
    "qwen2": Case("qwen2", "Qwen2"),
    "qwen3": Case("qwen3", "Qwen3", {"head_dim": 32}, _heads("qwen3", 32)),
    "starcoder2": Case("starcoder2", "Starcoder2", {"sliding_window": None}),
    "gemma": Case("gemma", "Gemma", {"head_dim": 32}, _heads("gemma", 32)),
}


@cache
def network(case: str) -> Any:
    """Return a random model of a case, with norms and biases large enough to matter."""
    chosen = CASES[case]
    shape = dict(hidden_size=HIDDEN, intermediate_size=MIDDLE, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
    shape |= dict(num_key_value_heads=GROUPS, max_position_embeddings=LENGTH, vocab_size=vocabulary_size())
    config = getattr(transformers, f"{chosen.kind}Config")(**{"tie_word_embeddings": True, **shape, **chosen.config})
    torch.manual_seed(7)
    made = getattr(transformers, f"{chosen.kind}ForCausalLM")(config).float().eval()
    for name, parameter in made.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn_like(parameter)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


@cache
def vocabulary_size() -> int:
    """Return the size of the small vocabulary."""
    return add_byte_level(gguf.GGUFWriter(None, "llama"), PRE)


def write_model(
    file: Path,
    case: str = "llama",
    form: str = "F32",
    change: Callable[[Any], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """Write a complete file of one case.

    `settings` and `tensors` override the usual ones (None: left out); `change` is called with the writer last.
    """
    chosen, made = CASES[case], network(case)
    writer = gguf.GGUFWriter(str(file), chosen.name)
    values = {**_usual(chosen.name, made.config), **chosen.settings, **(settings or {})}
    for key, value in values.items():
        if value is not None:
            _set(writer, key, value)
    add_byte_level(writer, PRE)
    held = {**_tensors(chosen, made), **(tensors or {})}
    for name, data in held.items():
        if data is not None and data.ndim > 1 and form != "F32":
            kind = gguf.GGMLQuantizationType[form]
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        elif data is not None:
            writer.add_tensor(name, data)
    if change is not None:
        change(writer)
    finish(writer)
    return file


def _usual(name: str, config: Any) -> dict[str, Any]:
    norm = "layer_norm_epsilon" if name == "starcoder2" else "layer_norm_rms_epsilon"
    return {
        f"{name}.context_length": LENGTH,
        f"{name}.embedding_length": HIDDEN,
        f"{name}.block_count": LAYERS,
        f"{name}.feed_forward_length": MIDDLE,
        f"{name}.attention.head_count": HEADS,
        f"{name}.attention.head_count_kv": GROUPS,
        f"{name}.attention.{norm}": config.norm_epsilon if name == "starcoder2" else config.rms_norm_eps,
        f"{name}.rope.freq_base": 10000.0,
    }


def _set(writer: Any, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
    add[type(value)](key, value)


def _tensors(case: Case, made: Any) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {}
    for name, parameter in made.named_parameters():
        place, _, part = name.rpartition(".")
        layer, _, inside = place.removeprefix("model.layers.").partition(".")
        there = PLACES[place] if place in PLACES else f"blk.{layer}.{PLACES[inside]}"
        data = parameter.detach().numpy()
        heads = {"attn_q": HEADS, "attn_k": GROUPS}.get(there.rpartition(".")[2])
        if case.name == "llama" and heads:
            data = (
                data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
            )
        if case.name == "gemma" and "norm" in place:
            data = data + np.float32(1)
        tensors[f"{there}.{part}"] = np.ascontiguousarray(data)
    if case.config.get("rope_parameters") == LLAMA3:
        frequencies = made.model.rotary_emb.inv_freq.double()
        plain = LLAMA3["rope_theta"] ** (-torch.arange(0, HIDDEN // HEADS, 2).double() / (HIDDEN // HEADS))
        tensors["rope_freqs.weight"] = (plain / frequencies).float().numpy()
    return tensors
