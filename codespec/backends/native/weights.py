"""Read a Llama-shaped model for the native kernels, from a GGUF file or a folder in the Hugging Face layout.

Quantized matrices are packed without loss, and float matrices are quantized to 8-bit blocks of 32 numbers.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from codespec_native.library import (
    FORMATS,
    GROUP,
    Bytes,
    Floats,
    Layer,
    Matrix,
    NativeError,
    Pool,
    Weights,
    block_bytes,
    find_path,
    paths,
)

from codespec.backends.gguf.architectures import HEAD_NORMS, LLAMA, OUTER, PHI3
from codespec.backends.gguf.header import Header, broken
from codespec.backends.gguf.settings import FACTORS, LONG, Settings, llama3_factors
from codespec.errors import ModelError
from codespec.store.model_folder import NATIVE_GGUF, NATIVE_TYPES, read_layout, weight_files
from codespec.store.resolve import ModelFiles

Json = Mapping[str, Any]

BIASES = {"query_bias": "attn_q", "key_bias": "attn_k", "value_bias": "attn_v", "out_bias": "attn_output"}
PATH = "CODESPEC_NATIVE_PATH"  # the environment variable that forces an instruction set
F32, F16, BF16 = 0, 1, 30  # format numbers of GGUF
DTYPES = {"F32": F32, "F16": F16, "BF16": BF16}  # format numbers by the names in a safetensors file
# Functions that convert the bytes of a vector in a format to numbers.
FLOATS: Mapping[int, Callable[[bytes], Floats]] = {
    F32: lambda data: np.frombuffer(data, dtype="<f4").astype(np.float32),
    F16: lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32),
    BF16: lambda data: (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32),
}
# GGUF's names of a folder's tensors: outside the layers, and in a layer.
_OUTER = {theirs: ours for ours, theirs in OUTER.items()}
_INNER = {theirs: ours for ours, theirs in (*LLAMA.items(), *HEAD_NORMS.items(), *PHI3.items())}
_SHARED = (  # fields that `Weights` takes over from `ModelShape`
    *("heads", "key_heads", "size", "rotated", "halves", "base", "factor", "epsilon"),
    *("embedding_scale", "residual_scale", "attention_scale", "logit_scale"),
)


def forced_path() -> int:
    """Return the number of the instruction set that CODESPEC_NATIVE_PATH names, or of the best supported one.

    Raises ModelError if the processor does not support the instruction set.
    """
    name = os.environ.get(PATH, "")
    try:
        return find_path(name)
    except NativeError as error:
        raise ModelError(
            f"{PATH} = {name!r} can't run on this processor", f"set {PATH} to one of {', '.join(paths())}"
        ) from error


class Unsupported(ModelError):
    """Error for an intact model that the native kernels do not support; torch may run it with native products."""


def refused(where: Path, feature: str) -> Unsupported:
    """Return the error for an intact model with a feature that the native kernels do not support."""
    what = f"{where} can't be computed by the native kernels (unsupported: {feature})"
    return Unsupported(what, "use dtype bfloat16")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and constants from a model's configuration. Fields not listed here have the same meaning as in `Weights`.

    context  maximum length of a text in tokens
    window   number of positions that a row attends to (0: all)
    factors  rotary factors computed from the configuration (None: read from a tensor if the model has one)
    tied     whether the embedding also serves as the output head, even if the model has a tensor for the head
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    size: int
    rotated: int
    context: int
    base: float
    factor: float
    epsilon: float
    halves: bool
    window: int = 0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0
    logit_scale: float = 1.0
    factors: Floats | None = None
    tied: bool = False


def read_file_shape(header: Header) -> ModelShape:
    """Read a model's shape from a GGUF file. Raises ModelError for a model that the native kernels do not support."""
    settings = Settings(header)
    if settings.name not in NATIVE_GGUF:
        raise refused(header.file, f"the architecture {settings.name!r}")
    hidden, heads = settings.whole("embedding_length"), settings.same("attention.head_count", 1)
    size = settings.whole("attention.key_length", hidden // max(heads, 1))
    scaling = settings.take("rope.scaling.type", str, "none" if settings.name == "phi3" else "linear")
    factor = settings.real("rope.scaling.factor", 1.0) or settings.real("rope.scale_linear", 1.0) or 1.0
    factor = 1.0 if scaling == "none" else factor
    if LONG in header.tensors or (factor != 1.0 and scaling != "linear"):
        raise refused(header.file, f"the rotary scaling {scaling!r}")
    settings.ignore("attention.value_length", "rope.scaling.factor", "rope.scale_linear", "expert_count")
    if settings.whole("attention.value_length", size) != size or settings.whole("expert_count", 0):
        raise refused(header.file, "its heads or experts")
    more: dict[str, Any] = {}
    if settings.name == "granite":
        more = {
            "embedding_scale": settings.real("embedding_scale", 1.0),
            "residual_scale": settings.real("residual_scale", 1.0),
            "attention_scale": settings.real("attention.scale", 0.0),
            "logit_scale": 1 / settings.real("logit_scale", 1.0),
        }
    shape = ModelShape(
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
        halves=settings.name not in ("llama", "granite"),  # whose rows of queries and keys are stored as adjacent pairs
        window=settings.whole("attention.sliding_window", 0) if settings.name == "phi3" else 0,
        **more,
    )
    settings.refuse_rest()
    return shape


def read_folder_shape(folder: Path, config: Json) -> ModelShape:
    """Read a model's shape from config.json. Raises ModelError for a model that the native kernels do not support."""
    try:
        return _folder_shape(folder, config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise broken(folder / "config.json", f"{type(error).__name__}: {error}") from error


def _folder_shape(folder: Path, config: Json) -> ModelShape:
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
    if family in ("qwen2", "qwen3") and config.get("use_sliding_window"):
        raise refused(folder, "a window in some of its layers")
    more: dict[str, Any] = {}
    if family == "granite":
        more = {
            "embedding_scale": float(config.get("embedding_multiplier", 1.0)),
            "residual_scale": float(config.get("residual_multiplier", 1.0)),
            "attention_scale": float(config.get("attention_multiplier", 0.0)),
            "logit_scale": 1 / float(config.get("logits_scaling", 1.0)),
        }
    return ModelShape(
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
        window=int(config.get("sliding_window") or 0) if family in ("mistral", "phi3") else 0,
        factors=llama3_factors(rotary, base, rotated) if kind == "llama3" else None,
        tied=bool(config.get("tie_word_embeddings", False)),
        **more,
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a memory-mapped file: its shape (rows first), GGUF's format number, and its offset in `data`."""

    shape: tuple[int, ...]
    kind: int
    start: int
    data: mmap.mmap


def map_file_tensors(header: Header) -> dict[str, Stored]:
    """Map a GGUF file into memory, and return its tensors by name."""
    data = _map(header.file)
    return {name: Stored(tensor.shape, tensor.kind, tensor.start, data) for name, tensor in header.tensors.items()}


def map_folder_tensors(files: ModelFiles) -> dict[str, Stored]:
    """Map a folder's weight files, and return the tensors by GGUF name. Raises ModelError for unsupported tensors."""
    tensors: dict[str, Stored] = {}
    for file in weight_files(files.path):
        layout = files.layouts[file] if file in files.layouts else read_layout(file)
        data = _map(file)  # after its header was checked
        for start, tensor in layout:
            if tensor.is_buffer:
                continue
            if tensor.dtype not in DTYPES:
                raise refused(files.path, f"{tensor.dtype} weights")
            path, _, part = tensor.name.rpartition(".")
            prefix, _, inner = path.partition("model.layers.")
            number, _, inner = inner.partition(".")
            if path in _OUTER:
                name = _OUTER[path]
            elif not prefix and number.isdecimal() and inner in _INNER:
                name = f"blk.{number}.{_INNER[inner]}"
            else:
                raise refused(files.path, f"the tensor {tensor.name}")
            tensors[f"{name}.{part}"] = Stored(tensor.shape, DTYPES[tensor.dtype], start, data)
    return tensors


def _map(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


class Reader:
    """The tensors of memory-mapped files. Methods raise ModelError for tensors that are missing or unsupported."""

    def __init__(self, where: Path, tensors: Mapping[str, Stored], pool: Pool) -> None:
        self.where, self.tensors, self._pool = where, tensors, pool
        self.names: set[str] = set()  # of the tensors that were read

    def rows(self, name: str, width: int, count: int | None = None) -> tuple[Stored, Bytes]:
        """Return a tensor and its rows [count, bytes per row] of `width` numbers each. `count` may be None."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise broken(self.where, f"it has no tensor {name}")
        self.names.add(name)
        height = int(np.prod(tensor.shape[:-1]))
        if tensor.shape[-1] != width or count not in (None, height):
            raise broken(self.where, f"{name} has the shape {tensor.shape}")
        try:
            each = block_bytes(tensor.kind, width) if tensor.kind != F32 else 4 * width
        except NativeError as error:
            known = ", ".join(name for name, *_ in FORMATS.values())
            raise refused(self.where, f"format {tensor.kind} of {name}; supported: {known}") from error
        if tensor.start + each * height > len(tensor.data):
            raise broken(self.where, f"{name} is longer than the file")
        data = np.frombuffer(tensor.data, dtype=np.uint8, count=each * height, offset=tensor.start)
        return tensor, data.reshape(height, each)

    def matrix(self, name: str, outputs: int, inputs: int, first: int = 0, whole: int = 0) -> Matrix:
        """Pack a matrix [outputs, inputs]: a whole tensor, or rows from `first` on in a tensor with `whole` rows."""
        tensor, rows = self.rows(name, inputs, whole or outputs)
        if inputs % GROUP:
            raise refused(self.where, f"the width {inputs} of {name}")
        part = np.ascontiguousarray(rows[first : first + outputs])
        return Matrix(self._pool, tensor.kind, outputs, inputs, part)

    def vector(self, name: str, size: int) -> Floats:
        """Return a vector of floats."""
        tensor, rows = self.rows(name, size, 1)
        if tensor.kind not in FLOATS:
            raise refused(self.where, f"{name}, which does not contain floats")
        return FLOATS[tensor.kind](rows.tobytes())

    def maybe(self, name: str, size: int) -> Floats | None:
        """Return a vector of floats, or None if the model has no such tensor."""
        return self.vector(name, size) if name in self.tensors else None

    def forget(self) -> None:
        """Release the memory of the mapped files, which packed weights do not need."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for data in {id(tensor.data): tensor.data for tensor in self.tensors.values()}.values():
                data.madvise(mmap.MADV_DONTNEED)


def load_weights(shape: ModelShape, reader: Reader) -> Weights:
    """Pack a model's weights. Raises ModelError for a model that the native kernels do not support."""
    embedding, rows = reader.rows("token_embd.weight", shape.hidden)
    untied = "output.weight" in reader.tensors and not shape.tied
    # The head is the largest matrix. Packing it first keeps the peak of memory low.
    head = reader.matrix("output.weight" if untied else "token_embd.weight", len(rows), shape.hidden)
    reader.forget()
    layers = []
    for number in range(shape.layers):
        layers.append(_layer(reader, f"blk.{number}.", shape))
        reader.forget()
    weights = Weights(
        embedding=rows,
        embedding_kind=embedding.kind,
        layers=layers,
        final_norm=reader.vector("output_norm.weight", shape.hidden),
        head=head,
        factors=shape.factors if shape.factors is not None else reader.maybe(FACTORS, shape.rotated // 2),
        **{name: getattr(shape, name) for name in _SHARED},
    )
    reader.forget()
    if unread := sorted(reader.tensors.keys() - reader.names):
        raise refused(reader.where, f"the tensor {unread[0]}")
    try:
        weights.check()
    except NativeError as error:
        raise Unsupported(f"{reader.where} can't be computed ({error})", "use another model") from error
    return weights


def _layer(reader: Reader, at: str, shape: ModelShape) -> Layer:
    queries, keys, hidden, inner = shape.heads * shape.size, shape.key_heads * shape.size, shape.hidden, shape.inner
    sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "attn_output": hidden}
    fused, whole = f"{at}attn_qkv.weight", queries + 2 * keys
    if fused in reader.tensors:
        query = reader.matrix(fused, queries, hidden, 0, whole)
        key, value = (reader.matrix(fused, keys, hidden, first, whole) for first in (queries, queries + keys))
    else:
        query, key, value = (reader.matrix(f"{at}{name}.weight", sizes[name], hidden) for name in list(sizes)[:3])
    if f"{at}ffn_gate.weight" in reader.tensors:
        gate, up = (reader.matrix(f"{at}{name}.weight", inner, hidden) for name in ("ffn_gate", "ffn_up"))
    else:
        gate, up = (reader.matrix(f"{at}ffn_up.weight", inner, hidden, first, 2 * inner) for first in (0, inner))
    return Layer(
        input_norm=reader.vector(f"{at}attn_norm.weight", hidden),
        inner_norm=reader.vector(f"{at}ffn_norm.weight", hidden),
        query=query,
        key=key,
        value=value,
        out=reader.matrix(f"{at}attn_output.weight", hidden, queries),
        gate=gate,
        up=up,
        down=reader.matrix(f"{at}ffn_down.weight", hidden, inner),
        query_norm=reader.maybe(f"{at}attn_q_norm.weight", shape.size),
        key_norm=reader.maybe(f"{at}attn_k_norm.weight", shape.size),
        window=shape.window,
        **{field: reader.maybe(f"{at}{name}.bias", sizes[name]) for field, name in BIASES.items()},
    )
