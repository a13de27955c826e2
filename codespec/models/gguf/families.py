"""The table of GGUF architectures: their names, settings and tensors in the Hugging Face layout.

Sources: `llama.cpp`'s converter (`conversion/*.py`) and its model definitions (`src/models/*.cpp`), which hold the
settings that files leave out, such as the pattern of sliding windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from codespec.models.gguf.hybrids import delta_settings, mamba_settings, positions
from codespec.models.gguf.names import (
    AFTER,
    ATTENTION,
    EXPERTS,
    GATED,
    GEMMA2,
    GRANITE_DENSE,
    GRANITE_EXPERTS,
    HEAD_NORMS,
    LLAMA,
    MAMBA2,
    MOE,
    NORMS,
    OSS,
    OSS_EXPERTS,
    PHI3,
    PLAIN,
    POST,
    QKV,
    QWEN3_NEXT_DELTA,
    QWEN35_DELTA,
    SEED,
    SHARED,
    SHARED_GATE,
    Stack,
)
from codespec.models.gguf.rotary import read_longrope
from codespec.models.gguf.settings import Json, Settings, unreadable


@dataclass(frozen=True, slots=True)
class Architecture:
    """Conversion rules of one architecture.

    config     adds the architecture's own keys to the common config.json
    layer      a layer's tensor names in the file → in the model, without `.weight` and `.bias`
    biased     names of the tensors with a bias, given config.json
    stacks     tensors of a layer that are made of several
    full       further names in layers with attention, if others have a recurrent state
    delta      the tensors of those others
    doubled    names of the tensors with two rows for each output: a gate beside the value
    twisted    whether query and key rows that rotate together are adjacent instead of in two halves
    partial    whether only a part of a head's numbers may turn
    norm_less  the constant that the file adds to norm weights
    """

    class_name: str
    kind: str
    config: Callable[[Settings, Json], Json]
    layer: Mapping[str, str]
    biased: Callable[[Json], Iterable[str]] = lambda _: ()
    stacks: tuple[Stack, ...] = ()
    full: Mapping[str, str] = field(default_factory=dict)
    delta: tuple[Stack, ...] = ()
    doubled: tuple[str, ...] = ()
    twisted: bool = False
    partial: bool = False
    norm_less: float = 0.0


def _llama(settings: Settings, config: Json) -> Json:
    tensors = settings.header.tensors
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return _silu(settings, config) | biases


def _silu(settings: Settings, config: Json) -> Json:
    return config | {"rms_norm_eps": settings.real("attention.layer_norm_rms_epsilon"), "hidden_act": "silu"}


def _qwen2(settings: Settings, config: Json) -> Json:
    return _silu(settings, config) | {"use_sliding_window": False}


def _qwen3(settings: Settings, config: Json) -> Json:
    return _qwen2(settings, config) | {"attention_bias": False}


def _starcoder2(settings: Settings, config: Json) -> Json:
    """Add StarCoder 2's keys. The file has no window setting, so there is none; published models use 4,096 tokens."""
    config["norm_epsilon"] = settings.real("attention.layer_norm_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


def _gemma(settings: Settings, config: Json) -> Json:
    config["rms_norm_eps"] = settings.real("attention.layer_norm_rms_epsilon")
    return config | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True}


def _gemma2(settings: Settings, config: Json) -> Json:
    return _gemma_windows(settings, config, largest=46, period=2) | {
        "attn_logit_softcapping": settings.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": settings.real("final_logit_softcapping", 30.0),
    }


def _gemma3(settings: Settings, config: Json) -> Json:
    """Add Gemma 3's keys. Layers with a window turn by their own base, without scaling."""
    tied = config["tie_word_embeddings"]
    config = _gemma_windows(settings, config, largest=62, period=6) | {"tie_word_embeddings": tied}
    base = settings.real("rope.freq_base_swa", 10000.0)
    if settings.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = settings.real("final_logit_softcapping")
    return config | {
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": base},
        }
    }


def _gemma_windows(settings: Settings, config: Json, largest: int, period: int) -> Json:
    """Add the keys that Gemma 2 and 3 share. The model with `largest` layers scales its scores differently."""
    config = _gemma(settings, config)
    wide = config["hidden_size"] // config["num_attention_heads"]
    scale = wide if config["num_hidden_layers"] == largest else config["head_dim"]
    config |= {"hidden_activation": config.pop("hidden_act"), "query_pre_attn_scalar": scale}
    return config | _windows(settings, config, period, 4096)


def _windows(settings: Settings, config: Json, period: int, default: int = 0) -> Json:
    """Return the window and each layer's kind: unless the file lists them, every `period`-th layer has none."""
    layers = config["num_hidden_layers"]
    window = settings.whole("attention.sliding_window", default)
    slides = settings.flags("attention.sliding_window_pattern", period if window else 1, layers)
    kinds = ["sliding_attention" if one else "full_attention" for one in slides]
    return {"sliding_window": window or None, "layer_types": kinds}


def _phi3(settings: Settings, config: Json) -> Json:
    original = settings.header.whole("phi3.rope.scaling.original_context_length")
    turned = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    longrope = read_longrope(settings, turned)
    if longrope:
        config["rope_parameters"] |= {**longrope, "original_max_position_embeddings": original}
    return _silu(settings, config) | {
        "original_max_position_embeddings": original or config["max_position_embeddings"],
        "sliding_window": settings.whole("attention.sliding_window", 0) or None,
    }


def _granite(settings: Settings, config: Json) -> Json:
    """Add Granite's keys. Files made from Granite 4 describe state-space layers that dense models lack."""
    if not settings.header.flag(f"{settings.name}.rope.scaling.finetuned", True):
        raise unreadable(settings.header, "attention without rotary embeddings")
    settings.ignore(*(f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "inner_size")))
    settings.ignore("ssm.time_step_rank")
    return _multipliers(settings, config)


def _multipliers(settings: Settings, config: Json) -> Json:
    settings.ignore("expert_shared_feed_forward_length")
    return _llama(settings, config) | {
        "attention_multiplier": settings.real("attention.scale", 1.0),
        "embedding_multiplier": settings.real("embedding_scale", 1.0),
        "residual_multiplier": settings.real("residual_scale", 1.0),
        "logits_scaling": settings.real("logit_scale", 1.0),
    }


def _granite_moe(settings: Settings, config: Json) -> Json:
    shared = settings.header.tensors.get("blk.0.ffn_gate_shexp.weight")
    config = _granite(settings, config) | _experts(settings, "num_local_experts", "intermediate_size")
    if shared is None:
        return config
    more = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    return config | more | {"shared_intermediate_size": shared.shape[0]}


def _granite_hybrid(settings: Settings, config: Json) -> Json:
    """Add the keys of Granite 4: Mamba2 where a layer has no heads of keys, dense or with experts."""
    tensors = settings.header.tensors
    turns = settings.header.flag("granitehybrid.rope.scaling.finetuned", True)
    config = _multipliers(settings, config) | mamba_settings(settings, config)
    dense, shared = (tensors.get(f"blk.0.ffn_gate{name}.weight") for name in ("", "_shexp"))
    several = "blk.0.ffn_gate_exps.weight" in tensors
    wide = shared if several else dense
    none = {"num_local_experts": 0, "num_experts_per_tok": 0}
    if not several and settings.whole("expert_count", 0):
        raise unreadable(settings.header, "its arrangement of experts")
    settings.ignore("expert_used_count")
    return (
        config
        | (_experts(settings, "num_local_experts", "intermediate_size") if several else none)
        | {"shared_intermediate_size": wide.shape[0] if wide else 0}
        | {"position_embedding_type": "rope" if turns else "nope"}
    )


def _experts(settings: Settings, count: str = "num_experts", size: str = "moe_intermediate_size") -> Json:
    """Return the number of experts, of chosen ones and an expert's size, under a family's names."""
    gate = settings.header.tensors.get("blk.0.ffn_gate_exps.weight")
    number, chosen = settings.whole("expert_count"), settings.whole("expert_used_count")
    if gate is None or len(gate.shape) != 3 or gate.shape[0] != number or not 0 < chosen <= number:
        raise unreadable(settings.header, "its arrangement of experts")
    settings.ignore("expert_feed_forward_length")
    return {count: number, "num_experts_per_tok": chosen, size: gate.shape[1]}


def _qwen2_moe(settings: Settings, config: Json) -> Json:
    shared = settings.header.tensors.get("blk.0.ffn_gate_shexp.weight")
    settings.ignore("expert_shared_feed_forward_length")
    size = {} if shared is None else {"shared_expert_intermediate_size": shared.shape[0]}
    return _qwen2(settings, config) | _experts(settings) | size | {"norm_topk_prob": False}


def _qwen3_moe(settings: Settings, config: Json) -> Json:
    return _qwen3(settings, config) | _experts(settings) | {"norm_topk_prob": True}


def _qwen3_next(settings: Settings, config: Json) -> Json:
    return _qwen2_moe(settings, config) | delta_settings(settings, config) | {"norm_topk_prob": True}


def _qwen35(settings: Settings, config: Json) -> Json:
    config["rope_parameters"] |= positions(settings)
    return _silu(settings, config) | delta_settings(settings, config) | {"attention_bias": False}


def _qwen35_moe(settings: Settings, config: Json) -> Json:
    return _qwen35(settings, config) | _qwen2_moe(settings, config)


def _gpt_oss(settings: Settings, config: Json) -> Json:
    """Add gpt-oss's keys. Its rotary scaling does not round the range that it interpolates."""
    config = _silu(settings, config) | _experts(settings, "num_local_experts", "intermediate_size")
    if config["rope_parameters"]["rope_type"] == "yarn":
        config["rope_parameters"]["truncate"] = False
    return config | _windows(settings, config, period=2) | {"attention_bias": True}


def _smollm3(settings: Settings, config: Json) -> Json:
    return _llama(settings, config) | {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _seed_oss(settings: Settings, config: Json) -> Json:
    biased = "blk.0.attn_output.bias" in settings.header.tensors
    return _llama(settings, config) | {"attention_out_bias": biased}


def _olmo2(settings: Settings, config: Json) -> Json:
    """Add OLMo 2's keys, or OLMo 3's: that has windows, and scales only the layers without one."""
    config = _llama(settings, config)
    if not settings.has("attention.sliding_window"):
        return config
    rotary = config["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": settings.real("rope.freq_base_swa", rotary["rope_theta"])}
    config |= _windows(settings, config, period=4)
    config |= {"rope_parameters": {"full_attention": rotary, "sliding_attention": plain}}
    return config | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}


def _mistral3(settings: Settings, config: Json) -> Json:
    """Add the keys of Ministral 3, which scales queries by their position, or of an earlier Mistral, which does not."""
    config = _llama(settings, config) | {"sliding_window": None}
    if not settings.has("attention.temperature_scale"):
        return config
    scale = settings.real("rope.scaling.yarn_log_multiplier", 0.0)
    rotary = {"llama_4_scaling_beta": settings.real("attention.temperature_scale")}
    rotary |= {"mscale": scale, "mscale_all_dim": scale} if scale else {}
    config["rope_parameters"] |= rotary
    return config | {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}


def _llama_biases(config: Json) -> Iterable[str]:
    return (*(ATTENTION if config["attention_bias"] else ()), *(GATED if config["mlp_bias"] else ()))


def _seed_biases(config: Json) -> Iterable[str]:
    out = ("attn_output",) if config["attention_out_bias"] else ()
    return (*(QKV if config["attention_bias"] else ()), *out, *(GATED if config["mlp_bias"] else ()))


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _llama, LLAMA, _llama_biases, twisted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _qwen2, LLAMA, lambda _: QKV),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _qwen3, {**LLAMA, **HEAD_NORMS}),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM", "starcoder2", _starcoder2, PLAIN, lambda _: (*PLAIN, "output_norm")
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", _gemma, LLAMA, norm_less=1.0),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", _gemma2, GEMMA2, norm_less=1.0),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3, {**GEMMA2, **HEAD_NORMS}, norm_less=1.0),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _phi3, PHI3, doubled=("ffn_up",), partial=True),
    "granite": Architecture("GraniteForCausalLM", "granite", _granite, LLAMA, _llama_biases, twisted=True),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM",
        "granitemoe",
        _granite_moe,
        {**NORMS, **ATTENTION},
        stacks=GRANITE_EXPERTS,
        twisted=True,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        _granite_hybrid,
        NORMS,
        stacks=tuple(replace(stack, optional=True) for stack in (*GRANITE_EXPERTS, *GRANITE_DENSE)),
        full=ATTENTION,
        delta=MAMBA2,
        twisted=True,
    ),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        _qwen2_moe,
        {**MOE, **SHARED},
        lambda _: QKV,
        stacks=(*EXPERTS, SHARED_GATE),
    ),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe, {**MOE, **HEAD_NORMS}, stacks=EXPERTS),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        _gpt_oss,
        OSS,
        lambda _: (*ATTENTION, "ffn_gate_inp"),
        stacks=OSS_EXPERTS,
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        _qwen3_next,
        {**POST, "ffn_gate_inp": "mlp.gate", **SHARED},
        stacks=(*EXPERTS, SHARED_GATE),
        full={**ATTENTION, **HEAD_NORMS},
        delta=QWEN3_NEXT_DELTA,
        doubled=("attn_q",),
        partial=True,
        norm_less=1.0,
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        _qwen35,
        {**POST, **GATED},
        full={**ATTENTION, **HEAD_NORMS},
        delta=QWEN35_DELTA,
        doubled=("attn_q",),
        partial=True,
        norm_less=1.0,
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        _qwen35_moe,
        {**POST, "ffn_gate_inp": "mlp.gate", **SHARED},
        stacks=(*EXPERTS, SHARED_GATE),
        full={**ATTENTION, **HEAD_NORMS},
        delta=QWEN35_DELTA,
        doubled=("attn_q",),
        partial=True,
        norm_less=1.0,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", _smollm3, LLAMA, _llama_biases, twisted=True),
    "seed_oss": Architecture("SeedOssForCausalLM", "seed_oss", _seed_oss, SEED, _seed_biases),
    "olmo2": Architecture(
        "Olmo2ForCausalLM", "olmo2", _olmo2, {**AFTER, **ATTENTION, **HEAD_NORMS, **GATED}, _llama_biases
    ),
    "mistral3": Architecture("MistralForCausalLM", "mistral", _mistral3, LLAMA, _llama_biases, twisted=True),
}
