"""Read the architecture settings of a GGUF file, reject unknown settings, and derive the content of config.json.

The rules follow `llama.cpp`'s converter (`conversion/*.py`) and model definitions (`src/models/*.cpp`). The model
definitions contain settings that GGUF files omit, such as the pattern of sliding windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf.header import Header, broken
from codespec.errors import ModelError

Json = dict[str, Any]

# Settings without effect on the arithmetic: metadata, and sizes that the shapes of tensors also give.
_NOTES = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "rope.scaling.original_context_length")

FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_YARN = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}


class Settings:
    """The architecture settings of a GGUF file, and the keys of the settings that were read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.get("general.architecture", str, "")
        self._seen = {f"{self.name}.{note}" for note in _NOTES}

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a setting or `default`. Raise ModelError for a missing, negative or mistyped setting."""
        full = f"{self.name}.{key}"
        self._seen.add(full)
        value = self.header.settings.get(full, default)
        if not isinstance(value, kinds) or isinstance(value, bool) or (isinstance(value, int | float) and value < 0):
            raise broken(self.header.file, f"{full} is missing or has the wrong type")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return an integer setting, checked by `take`."""
        return int(self.take(key, int, default))

    def real(self, key: str, default: float | None = None) -> float:
        """Return a numeric setting as the shortest decimal number that has the same 32-bit value."""
        return float(str(np.float32(self.take(key, (float, int), default))))

    def has(self, key: str) -> bool:
        """Return whether the file has this setting."""
        return f"{self.name}.{key}" in self.header.settings

    def same(self, key: str, default: int) -> int:
        """Return an integer setting, stored as one number or as a list with the same number for every layer."""
        value = self.take(key, (int, list), default)
        several = set(value) if isinstance(value, list) else {value}
        if len(several) != 1 or not all(isinstance(number, int) and number >= 0 for number in several):
            raise unreadable(self.header, f"its setting {self.name}.{key}, which differs from layer to layer")
        return int(several.pop())

    def flags(self, key: str, period: int, layers: int) -> list[bool]:
        """Return one boolean per layer, from a list or from a number in the file.

        For a number n (by default `period`), every n-th layer is False, and the others are True.
        """
        value = self.take(key, (int, list), period)
        if isinstance(value, list):
            if len(value) != layers:
                raise broken(self.header.file, f"{self.name}.{key} does not name {layers} layers")
            return [bool(flag) for flag in value]
        return [number % value < value - 1 if value else False for number in range(layers)]

    def ignore(self, *keys: str) -> None:
        """Mark settings that have no effect on the converted model as read."""
        self._seen |= {f"{self.name}.{key}" for key in keys}

    def refuse_rest(self) -> None:
        """Raise ModelError if the file has a setting that was not read and may therefore change the model's output."""
        prefix = f"{self.name}."
        for key in self.header.settings:
            if key.startswith(prefix) and key not in self._seen:
                raise unreadable(self.header, f"its setting {key}")


def unreadable(header: Header, feature: str) -> ModelError:
    """Return the ModelError for an intact file with an unsupported feature."""
    return ModelError(
        f"{header.file} can't be converted without changing the model (unsupported: {feature})",
        "use the model's folder in the Hugging Face layout",
    )


def read_rotary(settings: Settings, rotated: int) -> Json:
    """Return `rope_parameters` for config.json, for attention heads with `rotated` rotated dimensions."""
    rotary: Json = {"rope_theta": settings.real("rope.freq_base", 10000.0), "rope_type": "default"}
    factor = settings.real("rope.scaling.factor", 0.0) or settings.real("rope.scale_linear", 0.0)
    kind = settings.take("rope.scaling.type", str, "linear")
    original = settings.header.get(f"{settings.name}.rope.scaling.original_context_length", int, None)
    if factor not in (0.0, 1.0) and kind != "none":
        if kind not in ("linear", "yarn") or (kind == "yarn" and original is None):
            raise unreadable(settings.header, f"its rotary scaling {kind!r}")
        rotary |= {"rope_type": kind, "factor": factor}
        rotary |= {"original_max_position_embeddings": original} if kind == "yarn" else {}
        rotary |= {ours: settings.real(key) for key, ours in _YARN.items() if kind == "yarn" and settings.has(key)}
    if FACTORS in settings.header.tensors:
        if rotary["rope_type"] != "default":
            raise unreadable(settings.header, "a rotary scaling combined with rotary factors")
        rotary |= _llama3(settings.header, rotary["rope_theta"], rotated)
    return rotary


def read_longrope(settings: Settings, rotated: int) -> Json:
    """Return Phi-3's rotary factors for short and for long texts, or {} if the file has no such factors."""
    header = settings.header
    if not {LONG, SHORT} <= header.tensors.keys():
        return {}
    factors = {"long_factor": LONG, "short_factor": SHORT}
    read = {ours: [float(str(factor)) for factor in _read_factors(header, name)] for ours, name in factors.items()}
    if any(len(listed) != rotated // 2 for listed in read.values()):
        raise unreadable(header, "its rotary factors")
    settings.ignore("rope.scaling.attn_factor", "rope.scaling.type")  # transformers derives both from the two contexts
    return {"rope_type": "longrope", **read}


def _llama3(header: Header, base: float, head: int) -> Json:
    """Find the published settings of Llama 3's rotary scaling that reproduce the rotary factors in the file."""
    stored = _read_factors(header, FACTORS)
    if stored.size != -(-head // 2):  # before arrays of a size that only the header states
        raise unreadable(header, "its rotary factors")
    for scale in (8.0, 32.0, 16.0, 4.0):
        values: Json = {"factor": scale, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        values["original_max_position_embeddings"] = 8192
        factors = llama3_factors(values, base, head)
        if np.allclose(factors, stored, rtol=1e-5):
            return {"rope_type": "llama3", **values}
    raise unreadable(header, "its rotary factors")


def llama3_factors(rotary: Mapping[str, Any], base: float, rotated: int) -> NDArray[np.float32]:
    """Return Llama 3.1's rotary factors [rotated / 2], which rise with the wavelength from 1 to `factor`."""
    factor, low, high = (float(rotary[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    waves = 2 * pi * base ** (np.arange(0, rotated, 2) / rotated)
    turns = float(rotary["original_max_position_embeddings"]) / waves
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)  # of the unscaled frequency
    return (1 / (share + (1 - share) / factor)).astype(np.float32)


def _read_factors(header: Header, name: str) -> NDArray[np.float32]:
    """Read the factors of the rotary frequencies. Raise ModelError unless the factors are 32-bit floats."""
    tensor = header.tensors[name]
    if tensor.kind != 0 or len(tensor.shape) != 1 or tensor.start + 4 * tensor.shape[0] > header.size:
        raise broken(header.file, "its rotary factors can't be read")
    return np.fromfile(header.file, dtype="<f4", count=tensor.shape[0], offset=tensor.start)


def llama(settings: Settings, config: Json) -> Json:
    tensors = settings.header.tensors
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return _silu(settings, config) | biases


def _silu(settings: Settings, config: Json) -> Json:
    return config | {"rms_norm_eps": settings.real("attention.layer_norm_rms_epsilon"), "hidden_act": "silu"}


def qwen2(settings: Settings, config: Json) -> Json:
    return _silu(settings, config) | {"use_sliding_window": False}


def qwen3(settings: Settings, config: Json) -> Json:
    return qwen2(settings, config) | {"attention_bias": False}


def starcoder2(settings: Settings, config: Json) -> Json:
    """Add StarCoder 2's keys, without a sliding window, because GGUF files omit the window of the published models."""
    config["norm_epsilon"] = settings.real("attention.layer_norm_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


def gemma(settings: Settings, config: Json) -> Json:
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}


def phi3(settings: Settings, config: Json) -> Json:
    original = settings.header.get("phi3.rope.scaling.original_context_length", int, None)
    rotated = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    longrope = read_longrope(settings, rotated)
    if longrope:
        config["rope_parameters"] |= {**longrope, "original_max_position_embeddings": original}
    return _silu(settings, config) | {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "sliding_window": settings.whole("attention.sliding_window", 0) or None,
    }


def granite(settings: Settings, config: Json) -> Json:
    """Add Granite's keys. A GGUF file of Granite 4 has settings for state-space layers even without such layers."""
    if not settings.header.get(f"{settings.name}.rope.scaling.finetuned", bool, True):
        raise unreadable(settings.header, "attention without rotary embeddings")
    sizes = ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")
    settings.ignore("expert_shared_feed_forward_length", *(f"ssm.{size}" for size in sizes))
    return llama(settings, config) | {
        "attention_multiplier": settings.real("attention.scale", 1.0),
        "embedding_multiplier": settings.real("embedding_scale", 1.0),
        "residual_multiplier": settings.real("residual_scale", 1.0),
        "logits_scaling": settings.real("logit_scale", 1.0),
    }


def _experts(settings: Settings, count: str = "num_experts", size: str = "moe_intermediate_size") -> Json:
    """Return the number of experts, the number used per token, and the size of an expert, for config.json."""
    gate = settings.header.tensors.get("blk.0.ffn_gate_exps.weight")
    number, chosen = settings.whole("expert_count"), settings.whole("expert_used_count")
    if gate is None or len(gate.shape) != 3 or gate.shape[0] != number or not 0 < chosen <= number:
        raise unreadable(settings.header, "its arrangement of experts")
    settings.ignore("expert_feed_forward_length")
    return {count: number, "num_experts_per_tok": chosen, size: gate.shape[1]}


def qwen2_moe(settings: Settings, config: Json) -> Json:
    shared = settings.header.tensors.get("blk.0.ffn_gate_shexp.weight")
    settings.ignore("expert_shared_feed_forward_length")
    size = {} if shared is None else {"shared_expert_intermediate_size": shared.shape[0]}
    return qwen2(settings, config) | _experts(settings) | size | {"norm_topk_prob": False}


def qwen3_moe(settings: Settings, config: Json) -> Json:
    return qwen3(settings, config) | _experts(settings) | {"norm_topk_prob": True}


def qwen3_next(settings: Settings, config: Json) -> Json:
    return qwen2_moe(settings, config) | _delta_settings(settings, config) | {"norm_topk_prob": True}


def qwen35(settings: Settings, config: Json) -> Json:
    config["rope_parameters"] |= _positions(settings)
    return _silu(settings, config) | _delta_settings(settings, config) | {"attention_bias": False}


def qwen35_moe(settings: Settings, config: Json) -> Json:
    return qwen35(settings, config) | qwen2_moe(settings, config)


def gpt_oss(settings: Settings, config: Json) -> Json:
    """Add gpt-oss's keys. If the file has a window but no pattern, every second layer uses the sliding window."""
    config = _silu(settings, config) | _experts(settings, "num_local_experts", "intermediate_size")
    if config["rope_parameters"]["rope_type"] == "yarn":
        config["rope_parameters"]["truncate"] = False  # the bounds of the interpolated range are not rounded
    window = settings.whole("attention.sliding_window", 0)
    slides = settings.flags("attention.sliding_window_pattern", 2 if window else 1, config["num_hidden_layers"])
    kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    return config | {"sliding_window": window or None, "layer_types": kinds, "attention_bias": True}


def mistral3(settings: Settings, config: Json) -> Json:
    """Add the keys of Ministral 3, which scales queries by position, or of an earlier Mistral model, which does not."""
    config = llama(settings, config) | {"sliding_window": None}
    if not settings.has("attention.temperature_scale"):
        return config
    scale = settings.real("rope.scaling.yarn_log_multiplier", 0.0)
    rotary = {"llama_4_scaling_beta": settings.real("attention.temperature_scale")}
    rotary |= {"mscale": scale, "mscale_all_dim": scale} if scale else {}
    config["rope_parameters"] |= rotary
    return config | {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}


def _delta_settings(settings: Settings, config: Json) -> Json:
    """Return the sizes of the gated delta nets, and the kind of each layer."""
    keys, values = settings.whole("ssm.group_count"), settings.whole("ssm.time_step_rank")
    inner, every = settings.whole("ssm.inner_size"), settings.whole("full_attention_interval", 4)
    if not 0 < keys <= values or values % keys or inner % values or not every:
        raise broken(settings.header.file, "the sizes of its recurrent layers do not fit together")
    layers = config["num_hidden_layers"]
    kinds = ["linear_attention" if (number + 1) % every else "full_attention" for number in range(layers)]
    return {
        "linear_conv_kernel_dim": settings.whole("ssm.conv_kernel"),
        "linear_key_head_dim": settings.whole("ssm.state_size"),
        "linear_value_head_dim": inner // values,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "layer_types": kinds,
    }


def _positions(settings: Settings) -> Json:
    """Return how Qwen3.5 divides its rotary frequencies among a token's text position, image row and image column.

    For a token of text, the row and the column equal the text position.
    """
    sections = settings.header.get(f"{settings.name}.rope.dimension_sections", list, [])
    settings.ignore("rope.dimension_sections")
    if len(sections) != 4 or sections[3] or not all(isinstance(size, int) for size in sections):
        raise unreadable(settings.header, "its sections of positions")
    return {"mrope_section": sections[:3], "mrope_interleaved": True}
