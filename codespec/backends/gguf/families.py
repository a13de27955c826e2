"""The config.json of each family of GGUF files: functions that add a family's own keys to the common ones.

Sources: `llama.cpp`'s converter (`conversion/*.py`) and its model definitions (`src/models/*.cpp`), which hold the
settings that files leave out, such as the pattern of sliding windows.
"""

from __future__ import annotations

from codespec.backends.gguf.header import broken
from codespec.backends.gguf.settings import Json, Settings, read_longrope, unreadable


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
    """Add StarCoder 2's keys. The file has no window setting, so there is none; published models use 4,096 tokens."""
    config["norm_epsilon"] = settings.real("attention.layer_norm_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


def gemma(settings: Settings, config: Json) -> Json:
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}


def _windows(settings: Settings, config: Json, period: int, default: int = 0) -> Json:
    """Return the window and each layer's kind: unless the file lists them, every `period`-th layer has none."""
    layers = config["num_hidden_layers"]
    window = settings.whole("attention.sliding_window", default)
    slides = settings.flags("attention.sliding_window_pattern", period if window else 1, layers)
    kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    return {"sliding_window": window or None, "layer_types": kinds}


def phi3(settings: Settings, config: Json) -> Json:
    original = settings.header.whole("phi3.rope.scaling.original_context_length")
    rotated = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    longrope = read_longrope(settings, rotated)
    if longrope:
        config["rope_parameters"] |= {**longrope, "original_max_position_embeddings": original}
    return _silu(settings, config) | {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "sliding_window": settings.whole("attention.sliding_window", 0) or None,
    }


def granite(settings: Settings, config: Json) -> Json:
    """Add Granite's keys. Files made from Granite 4 describe state-space layers that dense models lack."""
    if not settings.header.flag(f"{settings.name}.rope.scaling.finetuned", True):
        raise unreadable(settings.header, "attention without rotary embeddings")
    settings.ignore(*(f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "inner_size")))
    settings.ignore("ssm.time_step_rank")
    settings.ignore("expert_shared_feed_forward_length")
    return llama(settings, config) | {
        "attention_multiplier": settings.real("attention.scale", 1.0),
        "embedding_multiplier": settings.real("embedding_scale", 1.0),
        "residual_multiplier": settings.real("residual_scale", 1.0),
        "logits_scaling": settings.real("logit_scale", 1.0),
    }


def _experts(settings: Settings, count: str = "num_experts", size: str = "moe_intermediate_size") -> Json:
    """Return the number of experts, the experts per token and the size of an expert, under a family's names."""
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
    """Add gpt-oss's keys. Its rotary scaling does not round the range that it interpolates."""
    config = _silu(settings, config) | _experts(settings, "num_local_experts", "intermediate_size")
    if config["rope_parameters"]["rope_type"] == "yarn":
        config["rope_parameters"]["truncate"] = False
    return config | _windows(settings, config, period=2) | {"attention_bias": True}


def mistral3(settings: Settings, config: Json) -> Json:
    """Add the keys of Ministral 3, which scales queries by their position, or of an earlier Mistral, which does not."""
    config = llama(settings, config) | {"sliding_window": None}
    if not settings.has("attention.temperature_scale"):
        return config
    scale = settings.real("rope.scaling.yarn_log_multiplier", 0.0)
    rotary = {"llama_4_scaling_beta": settings.real("attention.temperature_scale")}
    rotary |= {"mscale": scale, "mscale_all_dim": scale} if scale else {}
    config["rope_parameters"] |= rotary
    return config | {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}


def _delta_settings(settings: Settings, config: Json) -> Json:
    """Return the sizes of the gated delta nets, and each layer's kind."""
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
    """Return how Qwen3.5 divides its rotary frequencies between three positions: in a text, an image's row and column.

    In a text all three positions are equal.
    """
    sections = settings.header.items(f"{settings.name}.rope.dimension_sections")
    settings.ignore("rope.dimension_sections")
    if len(sections) != 4 or sections[3] or not all(isinstance(size, int) for size in sections):
        raise unreadable(settings.header, "its sections of positions")
    return {"mrope_section": sections[:3], "mrope_interleaved": True}
