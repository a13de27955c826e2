"""The weights of a Llama-shaped model for the native kernels, from tensors with the names that GGUF gives them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
)

from codespec.backends.gguf.settings import FACTORS
from codespec.errors import ModelError

BIASES = {"query_bias": "attn_q", "key_bias": "attn_k", "value_bias": "attn_v", "out_bias": "attn_output"}
F32, F16, BF16 = 0, 1, 30
# Vectors: the bytes of a row in a format -> its numbers.
FLOATS: Mapping[int, Callable[[bytes], Floats]] = {
    F32: lambda data: np.frombuffer(data, dtype="<f4").astype(np.float32),
    F16: lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32),
    BF16: lambda data: (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32),
}


class Unsupported(ModelError):
    """An intact model whose whole step the kernels do not compute; torch may compute it with native products."""


def refused(where: Path, feature: str) -> Unsupported:
    """Return the error for an intact model with a feature that the kernels do not compute."""
    what = f"{where} can't be computed by the native kernels (unsupported: {feature})"
    return Unsupported(what, "use dtype bfloat16")


def broken(where: Path, why: str) -> ModelError:
    """Return the ModelError for a damaged or malformed model."""
    return ModelError(f"{where} is truncated or corrupt ({why})", "fetch or export it again")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's configuration says beside its tensors. The scales and factors are those of `Weights`.

    `factors` are given here if the model has no tensor for them. `tied`: whether the embedding is the head in any case.
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


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a mapped file: its shape with rows first, the number of its format as in GGUF, and its first byte."""

    shape: tuple[int, ...]
    kind: int
    start: int
    data: mmap.mmap


class Reader:
    """The tensors of a mapped file. Raises ModelError for missing, misshapen or unreadable ones."""

    def __init__(self, where: Path, tensors: Mapping[str, Stored], pool: Pool) -> None:
        self.where, self.tensors, self._pool = where, tensors, pool
        self.names: set[str] = set()  # of the tensors that were read

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor."""
        return name in self.tensors

    def rows(self, name: str, width: int, count: int | None = None) -> tuple[Stored, Bytes]:
        """Return a tensor and its rows [count, row bytes] of `width` numbers each; `count` None: any."""
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
            raise refused(self.where, f"format {tensor.kind} of {name}; {known} are read") from error
        if tensor.start + each * height > len(tensor.data):
            raise broken(self.where, f"{name} is longer than the file")
        data = np.frombuffer(tensor.data, dtype=np.uint8, count=each * height, offset=tensor.start)
        return tensor, data.reshape(height, each)

    def matrix(self, name: str, outputs: int, inputs: int, first: int = 0, whole: int = 0) -> Matrix:
        """Pack a matrix [outputs, inputs]: a tensor, or its rows from `first` on if it has `whole` rows."""
        tensor, rows = self.rows(name, inputs, whole or outputs)
        if inputs % GROUP:
            raise refused(self.where, f"the width {inputs} of {name}")
        part = np.ascontiguousarray(rows[first : first + outputs])
        return Matrix(self._pool, tensor.kind, outputs, inputs, part)

    def vector(self, name: str, size: int) -> Floats:
        """Return a vector of floats."""
        tensor, rows = self.rows(name, size, 1)
        if tensor.kind not in FLOATS:
            raise refused(self.where, f"{name}, which is not in floats")
        return FLOATS[tensor.kind](rows.tobytes())

    def maybe(self, name: str, size: int) -> Floats | None:
        """Return a vector, or None if the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def forget(self) -> None:
        """Let the system drop the pages that were read: packed weights do not need the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for data in {id(tensor.data): tensor.data for tensor in self.tensors.values()}.values():
                data.madvise(mmap.MADV_DONTNEED)


def load_weights(shape: Shape, reader: Reader) -> Weights:
    """Pack a model's weights. Raises ModelError for a model that the kernels can't compute."""
    embedding, rows = reader.rows("token_embd.weight", shape.hidden)
    untied = reader.has("output.weight") and not shape.tied
    # The head is the largest matrix: its pages of the file come and go before those of the packed layers are there.
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


_SHARED = (
    *("heads", "key_heads", "size", "rotated", "halves", "base", "factor", "epsilon"),
    *("embedding_scale", "residual_scale", "attention_scale", "logit_scale"),
)


def _layer(reader: Reader, at: str, shape: Shape) -> Layer:
    queries, keys, hidden, inner = shape.heads * shape.size, shape.key_heads * shape.size, shape.hidden, shape.inner
    sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "attn_output": hidden}
    if reader.has(f"{at}attn_qkv.weight"):
        fused, whole = f"{at}attn_qkv.weight", queries + 2 * keys
        query = reader.matrix(fused, queries, hidden, 0, whole)
        key, value = (reader.matrix(fused, keys, hidden, first, whole) for first in (queries, queries + keys))
    else:
        query, key, value = (reader.matrix(f"{at}{name}.weight", sizes[name], hidden) for name in list(sizes)[:3])
    if reader.has(f"{at}ffn_gate.weight"):
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
