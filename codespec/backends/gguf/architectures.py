"""Rules for converting each GGUF architecture to the Hugging Face layout, such as the names of tensors.

The maps of tensor names omit the suffixes `.weight` and `.bias`. The rules follow the source code of llama.cpp.

In a gated delta net, each key head serves several value heads. The Hugging Face layout of Qwen3-Next groups queries,
keys, values and gates by key head; a GGUF file stores all queries, then all keys, and so on. The Hugging Face layout of
Qwen3.5 groups value heads by key head; a GGUF file stores the first value head of every key head, then the second of
every key head, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf import settings
from codespec.backends.gguf.settings import Json, Settings

Order = NDArray[np.int64]
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
QKV = ("attn_q", "attn_k", "attn_v")
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
LLAMA = {**NORMS, **ATTENTION, **GATED}
PLAIN = {**NORMS, **ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
PHI3 = {
    **NORMS,
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
POST = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MOE = {**NORMS, **ATTENTION, "ffn_gate_inp": "mlp.gate"}
OSS = {**POST, **ATTENTION, "ffn_gate_inp": "mlp.router"}


@dataclass(frozen=True, slots=True)
class Stack:
    """A tensor of the model that combines two tensors of a layer in the file, or stores one in a different form.

    name        name in the model, without the prefix of the layer
    sources     names in the file, without the prefix; an expert has the rows of the first source, then of the second
    woven       whether each expert's rows alternate between the two sources instead
    transposed  whether the model stores each expert's matrix transposed, with one row per input
    row         whether the tensor has one row, in which case the file omits the first dimension
    order       function from config.json to the order of the sources' rows; None if rows are grouped by expert
    columns     whether `order` applies to columns instead of rows
    kernel      whether the tensor is the kernel of a convolution, whose middle dimension the file omits
    rate        whether the tensor is the logarithm of a decay rate; the file stores the negative rate
    """

    name: str
    sources: tuple[str, ...]
    woven: bool = False
    transposed: bool = False
    row: bool = False
    order: Callable[[Json], Order] | None = None
    columns: bool = False
    kernel: bool = False
    rate: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """Conversion rules of one architecture.

    config     function that adds the architecture's own keys to the common config.json
    layer      map from the names of a layer's tensors in the file to their names in the model
    biased     function from config.json to the names of the tensors with a bias
    stacks     tensors of each layer that combine or change tensors of the file
    full       map of further names, for the attention layers of a model with recurrent layers
    delta      further stacks, for the recurrent layers
    doubled    names of the tensors with two rows per output: a value and its gate
    twisted    whether query and key rows that rotate together are adjacent in the file, not half a head apart
    partial    whether the rotary embedding may cover only a part of each head
    norm_less  constant that was added to the norm weights in the file
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


def fused_order(config: Json) -> Order:
    """Return the permutation of a file's query, key, value and gate rows that yields the layout of Qwen3-Next."""
    keys, ratio, key, value = _sizes(config)
    starts = np.cumsum([0, keys * key, keys * key, keys * ratio * value])
    each = (key, key, ratio * value, ratio * value)
    parts = [start + np.arange(keys * size).reshape(keys, size) for start, size in zip(starts, each, strict=True)]
    return np.concatenate(parts, axis=1).reshape(-1)


def value_order(config: Json) -> Order:
    """Return the permutation of a file's value rows that yields the layout of Qwen3.5."""
    return _by_key_head(config, _sizes(config)[3])


def head_order(config: Json) -> Order:
    """Return the permutation of a file's value heads that yields the layout of Qwen3.5."""
    return _by_key_head(config, 1)


def channel_order(config: Json) -> Order:
    """Return the permutation of a file's query, key and value rows for Qwen3.5, which moves only the value rows."""
    keys, _, key, _ = _sizes(config)
    return np.concatenate([np.arange(2 * keys * key), 2 * keys * key + value_order(config)])


def _by_key_head(config: Json, size: int) -> Order:
    keys, ratio, _, _ = _sizes(config)
    return np.arange(ratio * keys * size, dtype=np.int64).reshape(ratio, keys, size).swapaxes(0, 1).reshape(-1)


def _sizes(config: Json) -> tuple[int, int, int, int]:
    """Return the number of key heads, the number of value heads per key head, the key size and the value size."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return keys, values // keys, config["linear_key_head_dim"], config["linear_value_head_dim"]


def _llama_biases(config: Json) -> Iterable[str]:
    return (*(ATTENTION if config["attention_bias"] else ()), *(GATED if config["mlp_bias"] else ()))


GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
EXPERTS = (Stack("mlp.experts.gate_up_proj", GATE_UP), Stack("mlp.experts.down_proj", ("ffn_down_exps.weight",)))
SHARED_GATE = Stack("mlp.shared_expert_gate.weight", ("ffn_gate_inp_shexp.weight",), row=True)
OSS_EXPERTS = (
    Stack("mlp.experts.gate_up_proj", GATE_UP, woven=True, transposed=True),
    Stack("mlp.experts.gate_up_proj_bias", ("ffn_gate_exps.bias", "ffn_up_exps.bias"), woven=True),
    Stack("mlp.experts.down_proj", ("ffn_down_exps.weight",), transposed=True),
    Stack("mlp.experts.down_proj_bias", ("ffn_down_exps.bias",)),
    Stack("self_attn.sinks", ("attn_sinks.weight",)),
)
QWEN3_NEXT_DELTA = (
    Stack("linear_attn.in_proj_qkvz.weight", ("attn_qkv.weight", "attn_gate.weight"), order=fused_order),
    Stack("linear_attn.in_proj_ba.weight", ("ssm_ba.weight",)),
    Stack("linear_attn.conv1d.weight", ("ssm_conv1d.weight",), kernel=True),
    Stack("linear_attn.dt_bias", ("ssm_dt.bias",)),
    Stack("linear_attn.A_log", ("ssm_a",), rate=True),
    Stack("linear_attn.norm.weight", ("ssm_norm.weight",)),
    Stack("linear_attn.out_proj.weight", ("ssm_out.weight",)),
)
QWEN35_DELTA = (
    Stack("linear_attn.in_proj_qkv.weight", ("attn_qkv.weight",), order=channel_order),
    Stack("linear_attn.in_proj_z.weight", ("attn_gate.weight",), order=value_order),
    Stack("linear_attn.in_proj_b.weight", ("ssm_beta.weight",), order=head_order),
    Stack("linear_attn.in_proj_a.weight", ("ssm_alpha.weight",), order=head_order),
    Stack("linear_attn.conv1d.weight", ("ssm_conv1d.weight",), order=channel_order, kernel=True),
    Stack("linear_attn.dt_bias", ("ssm_dt.bias",), order=head_order),
    Stack("linear_attn.A_log", ("ssm_a",), order=head_order, rate=True),
    Stack("linear_attn.norm.weight", ("ssm_norm.weight",)),
    Stack("linear_attn.out_proj.weight", ("ssm_out.weight",), order=value_order, columns=True),
)
_recurrent = partial(Architecture, full={**ATTENTION, **HEAD_NORMS}, doubled=("attn_q",), partial=True, norm_less=1.0)
RECURRENT_MOE = {**POST, "ffn_gate_inp": "mlp.gate", **SHARED}

ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", settings.llama, LLAMA, _llama_biases, twisted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", settings.qwen2, LLAMA, lambda _: QKV),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", settings.qwen3, {**LLAMA, **HEAD_NORMS}),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM", "starcoder2", settings.starcoder2, PLAIN, lambda _: (*PLAIN, "output_norm")
    ),
    "gemma": Architecture("GemmaForCausalLM", "gemma", settings.gemma, LLAMA, norm_less=1.0),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", settings.phi3, PHI3, doubled=("ffn_up",), partial=True),
    "granite": Architecture("GraniteForCausalLM", "granite", settings.granite, LLAMA, _llama_biases, twisted=True),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        settings.qwen2_moe,
        {**MOE, **SHARED},
        lambda _: QKV,
        stacks=(*EXPERTS, SHARED_GATE),
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", settings.qwen3_moe, {**MOE, **HEAD_NORMS}, stacks=EXPERTS
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        settings.gpt_oss,
        OSS,
        lambda _: (*ATTENTION, "ffn_gate_inp"),
        stacks=OSS_EXPERTS,
    ),
    "qwen3next": _recurrent(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        settings.qwen3_next,
        RECURRENT_MOE,
        stacks=(*EXPERTS, SHARED_GATE),
        delta=QWEN3_NEXT_DELTA,
    ),
    "qwen35": _recurrent("Qwen3_5ForCausalLM", "qwen3_5_text", settings.qwen35, {**POST, **GATED}, delta=QWEN35_DELTA),
    "qwen35moe": _recurrent(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        settings.qwen35_moe,
        RECURRENT_MOE,
        stacks=(*EXPERTS, SHARED_GATE),
        delta=QWEN35_DELTA,
    ),
    "mistral3": Architecture("MistralForCausalLM", "mistral", settings.mistral3, LLAMA, _llama_biases, twisted=True),
}
