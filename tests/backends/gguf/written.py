"""What `llama.cpp`'s converter writes for a transformers model: tensors and settings, by `gguf`'s table of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, sqrt
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float32]

TWISTED = ("llama", "granite", "mistral3")
SHIFTED = ("gemma", "qwen3next", "qwen35", "qwen35moe")  # norms are stored plus one
_ARCHES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def tensors(name: str, made: Any) -> dict[str, Array]:
    """Return every tensor of a file of the architecture `name`, by its name in the file."""
    names = gguf.get_tensor_name_map(_ARCHES[name], made.config.num_hidden_layers)
    found: dict[str, Array] = {}
    for ours, parameter in made.named_parameters():
        data: Array = parameter.detach().float().numpy()
        for path, values in _changed(name, made.config, ours, data):
            there = names.get_name(path, try_suffixes=(".weight", ".bias"))
            assert there is not None, path
            found[there] = np.ascontiguousarray(values)
    return found


def _changed(name: str, config: Any, ours: str, data: Array) -> Iterator[tuple[str, Array]]:
    """Yield the tensors that the converter makes of one, with names that `gguf` knows."""
    place = ours.rpartition(".")[0]
    if "experts" in ours:
        yield from _experts(name, ours, data)
    elif place.endswith("mlp.gate") and data.ndim == 2:
        yield f"{_layer(ours)}.mlp.gate.weight", data
    elif place.endswith("shared_expert_gate"):
        yield ours, data.squeeze()
    elif ours.endswith("sinks"):
        yield f"{ours}.weight", data
    elif "linear_attn" in ours:
        yield from _delta(name, config, ours, data)
    elif name in TWISTED and (heads := _heads(config).get(place.rpartition(".")[2])):
        shape = data.shape
        yield ours, data.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    elif name in SHIFTED and place.endswith("norm") and not place.endswith("linear_attn.norm"):
        yield ours, data + np.float32(1)
    else:
        yield ours, data


def _delta(name: str, config: Any, ours: str, data: Array) -> Iterator[tuple[str, Array]]:
    """Yield a gated delta net's tensors: Qwen3-Next's fused ones apart, Qwen3.5's value heads in another order."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key, value, ratio = config.linear_key_head_dim, config.linear_value_head_dim, values // keys

    def moved(rows: Array, size: int) -> Array:
        return rows.reshape(keys, ratio, size, -1).swapaxes(0, 1).reshape(rows.shape)

    if "in_proj_qkvz" in ours:
        grouped = data.reshape(keys, -1, data.shape[1])
        sizes = np.cumsum([key, key, ratio * value])
        q, k, v, z = (part.reshape(-1, data.shape[1]) for part in np.split(grouped, sizes, axis=1))
        yield ours.replace("qkvz", "qkv"), np.concatenate([q, k, v])
        yield ours.replace("qkvz", "z"), z
        return
    if name != "qwen3next" and not ours.endswith("norm.weight"):
        if "in_proj_qkv" in ours or "conv1d" in ours:
            data = np.concatenate([data[: 2 * keys * key], moved(data[2 * keys * key :], value)])
        elif "out_proj" in ours:
            data = moved(data.T, value).T
        else:
            data = moved(data, value if "in_proj_z" in ours else 1)
    if ours.endswith("A_log"):
        data = -np.exp(data)
    elif ours.endswith("dt_bias"):
        ours = ours.replace("dt_bias", "dt_proj.bias")
    elif "conv1d" in ours:
        data = data.squeeze(1)
    yield ours, data


def _layer(ours: str) -> str:
    return ".".join(ours.split(".")[:3])


def _heads(config: Any) -> dict[str, int]:
    return {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}


def _experts(name: str, ours: str, data: Array) -> Iterator[tuple[str, Array]]:
    """Yield gates, ups and downs of all experts; gpt-oss alternates gates and ups, and stores inputs as rows."""
    woven = name == "gpt-oss"
    kind = "bias" if ours.endswith("_bias") else "weight"
    base = f"{_layer(ours)}.mlp.experts"
    if woven and kind == "weight":
        data = data.swapaxes(1, 2)
    if "down_proj" in ours:
        yield f"{base}.down_proj.{kind}", data
        return
    half = data.shape[1] // 2
    gate, up = (data[:, ::2], data[:, 1::2]) if woven else (data[:, :half], data[:, half:])
    yield f"{base}.gate_proj.{kind}", gate
    yield f"{base}.up_proj.{kind}", up


def settings(name: str, config: Any) -> dict[str, Any]:
    """Return the settings that the converter writes for every architecture."""
    rotary = getattr(config, "rope_parameters", None) or {}
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.freq_base": float(rotary.get("rope_theta", 10000.0)),
    }
    values |= _scaling(rotary)
    for key, theirs in _COPIED.items():
        value = next((getattr(config, one) for one in theirs if getattr(config, one, None) is not None), None)
        values[key] = value
    values |= _EXTRA.get(name, lambda _: {})(config)
    return {f"{name}.{key}": value for key, value in values.items() if value is not None}


_COPIED = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("norm_epsilon",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
}


def _scaling(rotary: dict[str, Any]) -> dict[str, Any]:
    kind = rotary.get("rope_type", "default")
    if kind == "longrope":
        return {"rope.scaling.type": kind, "rope.scaling.original_context_length": rotary[ORIGINAL]}
    if kind not in ("linear", "yarn"):
        return {}
    values = {"rope.scaling.type": kind, "rope.scaling.factor": float(rotary["factor"])}
    if kind == "yarn":
        values["rope.scaling.original_context_length"] = rotary[ORIGINAL]
        for speed in ("fast", "slow"):
            if (beta := rotary.get(f"beta_{speed}")) is not None:
                values[f"rope.scaling.yarn_beta_{speed}"] = float(beta)
    return values


ORIGINAL = "original_max_position_embeddings"


def _granite(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "attention.scale": float(config.attention_multiplier),
        "embedding_scale": float(config.embedding_multiplier),
        "residual_scale": float(config.residual_multiplier),
        "logit_scale": float(config.logits_scaling),
        "expert_shared_feed_forward_length": getattr(config, "shared_intermediate_size", None),
    }


def _phi3(config: Any) -> dict[str, Any]:
    rotary, head = config.rope_parameters, config.hidden_size // config.num_attention_heads
    values: dict[str, Any] = {"attention.sliding_window": config.sliding_window or 0, "rope.scaling.type": None}
    values["rope.dimension_count"] = int(head * rotary.get("partial_rotary_factor", 1.0))
    values["rope.scaling.original_context_length"] = config.original_max_position_embeddings
    if rotary["rope_type"] == "longrope":
        original = rotary[ORIGINAL]
        scale = log(config.max_position_embeddings / original) / log(original)
        values["rope.scaling.attn_factor"] = sqrt(1 + scale)
    return values


def _moe(config: Any) -> dict[str, Any]:
    shared = getattr(config, "shared_expert_intermediate_size", None)
    return {
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": shared,
    }


def _delta_settings(config: Any) -> dict[str, Any]:
    values = config.linear_num_value_heads
    shared = _moe(config) if hasattr(config, "moe_intermediate_size") else {}
    rotary = config.rope_parameters
    sections = rotary.get("mrope_section")
    return shared | {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": values,
        "ssm.inner_size": config.linear_value_head_dim * values,
        "full_attention_interval": 4,
        "rope.dimension_count": int(config.head_dim * rotary["partial_rotary_factor"]),
        "rope.dimension_sections": [*sections, 0] if sections else None,
    }


def _mistral3(config: Any) -> dict[str, Any]:
    rotary, head = config.rope_parameters, config.head_dim or config.hidden_size // config.num_attention_heads
    values: dict[str, Any] = {"rope.dimension_count": head, "vocab_size": config.vocab_size}
    if "llama_4_scaling_beta" in rotary:
        values["rope.scaling.yarn_log_multiplier"] = float(rotary["mscale_all_dim"])
        values["attention.temperature_scale"] = float(rotary["llama_4_scaling_beta"])
    return values


_EXTRA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "phi3": _phi3,
    "granite": _granite,
    "qwen2moe": _moe,
    "qwen3moe": _moe,
    "gpt-oss": lambda config: {
        "attention.sliding_window": config.sliding_window,
        "expert_feed_forward_length": config.intermediate_size,
    },
    "qwen3next": _delta_settings,
    "qwen35": _delta_settings,
    "qwen35moe": _delta_settings,
    "mistral3": _mistral3,
}


def factors(made: Any) -> dict[str, Array]:
    """Return the tensors of rotary factors that a model's settings call for."""
    rotary = getattr(made.config, "rope_parameters", None) or {}
    if rotary.get("rope_type") == "llama3":
        frequencies = made.model.rotary_emb.inv_freq.double()
        size = 2 * len(frequencies)
        plain = rotary["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
        return {"rope_freqs.weight": (plain / frequencies).float().numpy()}
    if rotary.get("rope_type") == "longrope":
        return {
            f"rope_factors_{one}.weight": np.array(rotary[f"{one}_factor"], np.float32) for one in ("long", "short")
        }
    return {}
