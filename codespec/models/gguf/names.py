"""Names of a layer's tensors in GGUF files and in the Hugging Face layout, without `.weight` and `.bias`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codespec.models.gguf.hybrids import channel_order, fused_order, head_order, value_order
from codespec.models.gguf.settings import Json

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
AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
AROUND = {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm", **AFTER}
GEMMA2 = {**AROUND, **ATTENTION, **GATED}
PHI3 = {
    **NORMS,
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
POST = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
SEED = {**POST, **ATTENTION, **GATED}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MOE = {**NORMS, **ATTENTION, "ffn_gate_inp": "mlp.gate"}
OSS = {**POST, **ATTENTION, "ffn_gate_inp": "mlp.router"}


@dataclass(frozen=True, slots=True)
class Stack:
    """A tensor of the model that is made of one or two tensors of a layer, such as all its experts.

    name        in the model, below the layer
    sources     in the file, below the layer; of each expert the rows of the first are followed by those of the second
    woven       whether rows of both alternate instead
    transposed  whether each expert's matrix is stored with inputs as rows
    optional    whether the file may lack it
    row         whether it is one row, which the file stores without its first dimension
    order       the order of all rows of the sources, given config.json, in place of expert by expert
    columns     whether that is an order of the columns
    kernel      whether it is the kernel of a convolution, which the file stores without its middle dimension
    flat        whether it has one dimension, and the file stores it with two
    rate        whether it is the logarithm of a rate of decay, which the file stores as a negative number
    """

    name: str
    sources: tuple[str, ...]
    woven: bool = False
    transposed: bool = False
    optional: bool = False
    row: bool = False
    order: Callable[[Json], NDArray[np.int64]] | None = None
    columns: bool = False
    kernel: bool = False
    flat: bool = False
    rate: bool = False


GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
EXPERTS = (
    Stack("mlp.experts.gate_up_proj", GATE_UP),
    Stack("mlp.experts.down_proj", ("ffn_down_exps.weight",)),
)
SHARED_GATE = Stack("mlp.shared_expert_gate.weight", ("ffn_gate_inp_shexp.weight",), row=True)
GRANITE_EXPERTS = (
    Stack("block_sparse_moe.router.weight", ("ffn_gate_inp.weight",)),
    Stack("block_sparse_moe.experts.gate_up_proj", GATE_UP),
    Stack("block_sparse_moe.experts.down_proj", ("ffn_down_exps.weight",)),
    Stack("shared_mlp.input_linear.weight", ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), optional=True),
    Stack("shared_mlp.output_linear.weight", ("ffn_down_shexp.weight",), optional=True),
)
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
MAMBA2 = (
    Stack("mamba.in_proj.weight", ("ssm_in.weight",)),
    Stack("mamba.conv1d.weight", ("ssm_conv1d.weight",), kernel=True),
    Stack("mamba.conv1d.bias", ("ssm_conv1d.bias",)),
    Stack("mamba.dt_bias", ("ssm_dt.bias",)),
    Stack("mamba.A_log", ("ssm_a",), flat=True, rate=True),
    Stack("mamba.D", ("ssm_d",), flat=True),
    Stack("mamba.norm.weight", ("ssm_norm.weight",), flat=True),
    Stack("mamba.out_proj.weight", ("ssm_out.weight",)),
)
GRANITE_DENSE = (
    Stack("shared_mlp.input_linear.weight", ("ffn_gate.weight", "ffn_up.weight"), optional=True),
    Stack("shared_mlp.output_linear.weight", ("ffn_down.weight",), optional=True),
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
