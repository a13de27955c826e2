"""A folder in the Hugging Face layout for the native kernels: its floats become eight bits in blocks of 32."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from codespec_native.library import Floats

from codespec.backends.native.weights import BF16, F16, F32, Shape, Stored, broken, refused
from codespec.store.model_config import NATIVE_TYPES
from codespec.store.resolve import ModelFiles
from codespec.store.weights import StoredTensor, read_layout, weight_files

Json = Mapping[str, Any]
FORMATS = {"F32": F32, "F16": F16, "BF16": BF16}
# Names of tensors: in GGUF -> here.
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FUSED = {"mlp.gate_up_proj": "ffn_up"}  # Phi-3's, as GGUF names it


def read_shape(folder: Path, config: Json) -> Shape:
    """Read a folder's config.json. Raises ModelError for what the kernels do not compute."""
    try:
        return _shape(folder, config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise broken(folder / "config.json", f"{type(error).__name__}: {error}") from error


def _shape(folder: Path, config: Json) -> Shape:
    family = config.get("model_type")
    if family not in NATIVE_TYPES:
        raise refused(folder, f"the architecture {family!r}")
    if config.get("hidden_act", "silu") != "silu":
        raise refused(folder, f"the activation {config['hidden_act']!r}")
    if config.get("quantization_config"):
        raise refused(folder, "its quantized weights")
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    size = int(config.get("head_dim") or hidden // heads)
    rotary: Json = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rotary.get("rope_theta") or config.get("rope_theta") or 10000.0)
    part = float(rotary.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    rotated, kind = int(size * part), rotary.get("rope_type") or rotary.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise refused(folder, f"the rotary scaling {kind!r}")
    window = int(config.get("sliding_window") or 0) if family in ("mistral", "phi3") else 0
    if family in ("qwen2", "qwen3") and config.get("use_sliding_window"):
        raise refused(folder, "a window in some of its layers")
    granite = family == "granite"
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        size=size,
        rotated=rotated,
        context=int(config["max_position_embeddings"]),
        base=base,
        factor=float(rotary["factor"]) if kind == "linear" else 1.0,
        epsilon=float(config["rms_norm_eps"]),
        halves=True,
        window=window,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)) if granite else 1.0,
        residual_scale=float(config.get("residual_multiplier", 1.0)) if granite else 1.0,
        attention_scale=float(config.get("attention_multiplier", 0.0)) if granite else 0.0,
        logit_scale=1 / float(config.get("logits_scaling", 1.0)) if granite else 1.0,
        factors=_llama3_factors(rotary, base, rotated) if kind == "llama3" else None,
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _llama3_factors(rotary: Json, base: float, rotated: int) -> Floats:
    """Return the factors [rotated / 2] by which Llama 3.1 slows its rotations: none for short waves, all for long."""
    factor, low, high = (float(rotary[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    waves = 2 * math.pi * base ** (np.arange(0, rotated, 2) / rotated)
    turns = float(rotary["original_max_position_embeddings"]) / waves
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)  # of the unscaled frequency
    return (1 / (share + (1 - share) / factor)).astype(np.float32)


def map_tensors(files: ModelFiles) -> dict[str, Stored]:
    """Map a folder's weights and return them by the names that GGUF gives them. Raises ModelError."""
    folder, names = files.path, {there: here for here, there in OUTER.items()}
    tensors: dict[str, Stored] = {}
    for file in weight_files(folder):
        layout = files.layouts[file] if file in files.layouts else read_layout(file)
        with file.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        for start, tensor in layout:
            if tensor.is_buffer:
                continue
            if tensor.dtype not in FORMATS:
                raise refused(folder, f"{tensor.dtype} weights")
            name = names.get(tensor.name) or _inner_name(tensor)
            if name is None:
                raise refused(folder, f"the tensor {tensor.name}")
            tensors[name] = Stored(tensor.shape, FORMATS[tensor.dtype], start, data)
    return tensors


def _inner_name(tensor: StoredTensor) -> str | None:
    """Return GGUF's name of a layer's tensor, or None for an unknown one."""
    prefix, _, rest = tensor.name.partition("model.layers.")
    number, _, rest = rest.partition(".")
    part, _, kind = rest.rpartition(".")
    known = {there: here for here, there in INNER.items()} | FUSED
    return f"blk.{number}.{known[part]}.{kind}" if not prefix and number.isdecimal() and part in known else None
