"""What the native kernels read of a GGUF file, or of a folder in the Hugging Face layout: its shape and its tensors.

A folder's floats become eight bits in blocks of 32.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from codespec_native.library import Floats

from codespec.backends.gguf.header import Header
from codespec.backends.gguf.settings import LONG, Settings
from codespec.backends.native.weights import BF16, F16, F32, Shape, Stored, broken, refused
from codespec.store.model_folder import NATIVE_TYPES, StoredTensor, read_layout, weight_files
from codespec.store.resolve import ModelFiles


def _granite(settings: Settings) -> dict[str, float]:
    return {
        "embedding_scale": settings.real("embedding_scale", 1.0),
        "residual_scale": settings.real("residual_scale", 1.0),
        "attention_scale": settings.real("attention.scale", 0.0),
        "logit_scale": 1 / settings.real("logit_scale", 1.0),
    }


def _window(settings: Settings) -> dict[str, float]:
    return {"window": settings.whole("attention.sliding_window", 0)}


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture. Files of `twisted` ones hold the rows of queries and keys as adjacent pairs."""

    twisted: bool = False
    more: Callable[[Settings], dict[str, float]] = lambda settings: {}


# The names are those of `codespec.store.model_folder.NATIVE_GGUF`.
FAMILIES = {
    "llama": Family(twisted=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "granite": Family(twisted=True, more=_granite),
    "phi3": Family(more=_window),
}


def read_file_shape(header: Header) -> Shape:
    """Read the settings of a file. Raises ModelError for what the kernels do not compute."""
    settings = Settings(header)
    family = FAMILIES.get(settings.name)
    if family is None:
        raise refused(header.file, f"the architecture {settings.name!r}")
    hidden, heads = settings.whole("embedding_length"), settings.same("attention.head_count", 1)
    size = settings.whole("attention.key_length", hidden // max(heads, 1))
    scaling = settings.take("rope.scaling.type", str, "none" if family.more is _window else "linear")
    factor = settings.real("rope.scaling.factor", 1.0) or settings.real("rope.scale_linear", 1.0) or 1.0
    factor = 1.0 if scaling == "none" else factor
    if LONG in header.tensors or (factor != 1.0 and scaling != "linear"):
        raise refused(header.file, f"the rotary scaling {scaling!r}")
    settings.ignore("attention.value_length", "rope.scaling.factor", "rope.scale_linear", "expert_count")
    if settings.whole("attention.value_length", size) != size or settings.whole("expert_count", 0):
        raise refused(header.file, "its heads or experts")
    shape = Shape(
        layers=settings.whole("block_count"),
        hidden=hidden,
        inner=settings.same("feed_forward_length", 0),
        heads=heads,
        key_heads=settings.same("attention.head_count_kv", heads),
        size=size,
        rotated=settings.whole("rope.dimension_count", size),
        context=settings.whole("context_length"),
        base=settings.real("rope.freq_base", 10000.0),
        factor=factor,
        epsilon=settings.real("attention.layer_norm_rms_epsilon"),
        halves=not family.twisted,
        **family.more(settings),  # type: ignore[arg-type]
    )
    settings.refuse_rest()
    return shape


def map_file_tensors(header: Header) -> dict[str, Stored]:
    """Map a file and return its tensors by name."""
    with header.file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return {name: Stored(tensor.shape, tensor.kind, tensor.start, data) for name, tensor in header.tensors.items()}


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


def read_folder_shape(folder: Path, config: Json) -> Shape:
    """Read a folder's config.json. Raises ModelError for what the kernels do not compute."""
    try:
        return _folder_shape(folder, config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise broken(folder / "config.json", f"{type(error).__name__}: {error}") from error


def _folder_shape(folder: Path, config: Json) -> Shape:
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


def map_folder_tensors(files: ModelFiles) -> dict[str, Stored]:
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
