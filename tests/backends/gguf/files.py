"""Small GGUF files, valid and broken: a random transformers model written like `llama.cpp`'s converter does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

from tests.backends.gguf import written
from tests.backends.gguf.llama_cpp_ids import add_byte_level, finish

HIDDEN, MIDDLE, LAYERS, HEADS, GROUPS, LENGTH = 64, 96, 2, 4, 2, 256
PRE = "smollm"
FLOAT = (
    ".bias",
    "ssm_a",
    "ssm_d",
    "norm.weight",
    "ssm_conv1d.weight",
    "ffn_gate_inp.weight",
)  # tensors that the converter never rounds
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


MULTIPLIERS = {"attention_multiplier": 0.07, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
MULTIPLIERS |= {"logits_scaling": 8.0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
WINDOW = 8
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16}
LONGROPE |= {"long_factor": [1.5 + i for i in range(8)], "short_factor": [1.0 + i / 8 for i in range(8)]}
MINISTRAL = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}
MINISTRAL |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "head_dim": 32}
DELTA |= {"linear_value_head_dim": 16, "num_hidden_layers": 4}
QUARTER = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
SECTIONS = {**QUARTER, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
SHARING = {**EXPERTS, "shared_expert_intermediate_size": 64}
OSS = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 64}
OSS |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}


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
    "qwen3": Case("qwen3", "Qwen3", {"head_dim": 32}),
    "starcoder2": Case("starcoder2", "Starcoder2", {"sliding_window": None}),
    "gemma": Case("gemma", "Gemma", {"head_dim": 32}),
    "phi3": Case("phi3", "Phi3", {"pad_token_id": 0, "sliding_window": WINDOW}),
    "phi3_partial": Case(
        "phi3",
        "Phi3",
        {"pad_token_id": 0}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "phi3_longrope": Case(
        "phi3",
        "Phi3",
        {"pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": 16},
    ),
    "granite": Case("granite", "Granite", {**MULTIPLIERS, "tie_word_embeddings": True}),
    "qwen2_moe": Case("qwen2moe", "Qwen2Moe", {**SHARING, "tie_word_embeddings": False}),
    "qwen3_moe": Case("qwen3moe", "Qwen3Moe", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "gpt_oss": Case(
        "gpt-oss",
        "GptOss",
        {**LOCAL, "head_dim": 32, "sliding_window": WINDOW, "num_hidden_layers": 3, "rope_parameters": OSS}
        | {"tie_word_embeddings": False},
    ),
    "qwen3_next": Case("qwen3next", "Qwen3Next", {**SHARING, **DELTA, "rope_parameters": QUARTER}),
    "qwen35": Case("qwen35", "Qwen3_5", {**DELTA, "rope_parameters": SECTIONS}),
    "qwen35_wide": Case("qwen35", "Qwen3_5", {**DELTA, "linear_value_head_dim": 32, "rope_parameters": SECTIONS}),
    "qwen35_moe": Case("qwen35moe", "Qwen3_5Moe", {**SHARING, **DELTA, "rope_parameters": SECTIONS}),
    "mistral3": Case("mistral3", "Mistral", {"sliding_window": None, "head_dim": 32}),
    "ministral3": Case("mistral3", "Ministral3", {"head_dim": 32, "rope_parameters": MINISTRAL}),
}


@cache
def network(case: str) -> Any:
    """Return a random model of a case, with norms and biases large enough to matter."""
    chosen = CASES[case]
    shape = dict(hidden_size=HIDDEN, intermediate_size=MIDDLE, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
    shape |= dict(num_key_value_heads=GROUPS, max_position_embeddings=LENGTH, vocab_size=vocabulary_size())
    text = "Text" if chosen.kind in ("Gemma3", "Qwen3_5", "Qwen3_5Moe") else ""
    made_config = getattr(transformers, f"{chosen.kind}{text}Config")
    config = made_config(**{"tie_word_embeddings": True, **shape, **chosen.config})
    torch.manual_seed(7)
    made = getattr(transformers, f"{chosen.kind}ForCausalLM")(config).float().eval()
    for name, parameter in made.named_parameters():
        if parameter.dim() > 2 or "sinks" in name:
            parameter.data.normal_(std=0.2)  # experts are not initialized by every class
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
    pre: str = PRE,
) -> Path:
    """Write a complete file of one case.

    `settings` and `tensors` replace the case's own; None omits one. `pre` names the pre-tokenizer. `change` is called
    last, with the writer.
    """
    chosen, made = CASES[case], network(case)
    writer = gguf.GGUFWriter(str(file), chosen.name)
    values = {**written.settings(chosen.name, made.config), **chosen.settings, **(settings or {})}
    for key, value in values.items():
        if value is not None:
            _set(writer, key, value)
    add_byte_level(writer, pre)
    held = {**written.tensors(chosen.name, made), **written.factors(made), **(tensors or {})}
    for name, data in held.items():
        if data is not None and data.ndim > 1 and form != "F32" and not name.endswith(FLOAT):
            kind = gguf.GGMLQuantizationType[form]
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        elif data is not None:
            writer.add_tensor(name, data)
    if change is not None:
        change(writer)
    finish(writer)
    return file


def _set(writer: Any, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
    add[list] = writer.add_array
    add[type(value)](key, value)
