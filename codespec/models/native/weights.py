"""Weights of the native kernels from a GGUF file: which tensors of which architectures, and the numbers beside them."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from codespec_native.library import FORMATS, Bytes, Floats, Layer, Matrix, NativeError, Pool, Weights, block_bytes

from codespec.errors import ModelError
from codespec.models.gguf.header import Header, Tensor, broken
from codespec.models.gguf.settings import FACTORS, LONG, Settings, unreadable

BIASES = {"query_bias": "attn_q", "key_bias": "attn_k", "value_bias": "attn_v", "out_bias": "attn_output"}
F32 = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a file says about a model beside its tensors. The scales are those of `Weights`."""

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


FAMILIES = {
    "llama": Family(twisted=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "granite": Family(twisted=True, more=_granite),
    "phi3": Family(more=_window),
}


def read_shape(header: Header) -> Shape:
    """Read the settings of a file. Raises ModelError for what the kernels do not compute."""
    settings = Settings(header)
    family = FAMILIES.get(settings.name)
    if family is None:
        raise unreadable(header, f"the architecture {settings.name!r} in native kernels")
    hidden, heads = settings.whole("embedding_length"), settings.same("attention.head_count", 1)
    size = settings.whole("attention.key_length", hidden // max(heads, 1))
    scaling = settings.take("rope.scaling.type", str, "none" if family.more is _window else "linear")
    factor = settings.real("rope.scaling.factor", 1.0) or settings.real("rope.scale_linear", 1.0) or 1.0
    factor = 1.0 if scaling == "none" else factor
    if LONG in header.tensors or (factor != 1.0 and scaling != "linear"):
        raise unreadable(header, f"the rotary scaling {scaling!r} in native kernels")
    settings.ignore("attention.value_length", "rope.scaling.factor", "rope.scale_linear", "expert_count")
    if settings.whole("attention.value_length", size) != size or settings.whole("expert_count", 0):
        raise unreadable(header, "its heads or experts in native kernels")
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


class Reader:
    """The tensors of a mapped file. Raises ModelError for missing, misshapen or unreadable ones."""

    def __init__(self, header: Header, pool: Pool) -> None:
        self.header, self._pool = header, pool
        with header.file.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.names: set[str] = set()  # of the tensors that were read

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor."""
        return name in self.header.tensors

    def rows(self, name: str, width: int, count: int | None = None) -> tuple[Tensor, Bytes]:
        """Return a tensor and its rows [count, row bytes] of `width` numbers each; `count` None: any."""
        tensor = self.header.tensors.get(name)
        if tensor is None:
            raise broken(self.header.file, f"it has no tensor {name}")
        self.names.add(name)
        height = int(np.prod(tensor.shape[:-1]))
        if tensor.shape[-1] != width or count not in (None, height):
            raise broken(self.header.file, f"{name} has the shape {tensor.shape}")
        try:
            each = block_bytes(tensor.kind, width) if tensor.kind != F32 else 4 * width
        except NativeError as error:
            known = ", ".join(name for name, *_ in FORMATS.values())
            raise unreadable(self.header, f"format {tensor.kind} of {name}; {known} are read") from error
        if tensor.start + each * height > len(self._map):
            raise broken(self.header.file, f"{name} is longer than the file")
        data = np.frombuffer(self._map, dtype=np.uint8, count=each * height, offset=tensor.start)
        return tensor, data.reshape(height, each)

    def matrix(self, name: str, outputs: int, inputs: int, first: int = 0, whole: int = 0) -> Matrix:
        """Pack a matrix [outputs, inputs]: a tensor, or its rows from `first` on if it has `whole` rows."""
        tensor, rows = self.rows(name, inputs, whole or outputs)
        part = np.ascontiguousarray(rows[first : first + outputs])
        return Matrix(self._pool, tensor.kind, outputs, inputs, part)

    def vector(self, name: str, size: int) -> Floats:
        """Return a vector of floats."""
        tensor, rows = self.rows(name, size, 1)
        if tensor.kind != F32:
            raise unreadable(self.header, f"{name}, which is not in F32")
        return np.frombuffer(rows.tobytes(), dtype="<f4").astype(np.float32)

    def maybe(self, name: str, size: int) -> Floats | None:
        """Return a vector, or None if the file has none."""
        return self.vector(name, size) if self.has(name) else None

    def forget(self) -> None:
        """Let the system drop the pages that were read: packed weights do not need the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def load_weights(header: Header, pool: Pool) -> Weights:
    """Pack the weights of a file. Raises ModelError for a file that the kernels can't compute."""
    shape, reader = read_shape(header), Reader(header, pool)
    embedding, rows = reader.rows("token_embd.weight", shape.hidden)
    head = "output.weight" if reader.has("output.weight") else "token_embd.weight"
    layers = []
    for number in range(shape.layers):
        layers.append(_layer(reader, f"blk.{number}.", shape))
        reader.forget()
    weights = Weights(
        embedding=rows,
        embedding_kind=embedding.kind,
        layers=layers,
        final_norm=reader.vector("output_norm.weight", shape.hidden),
        head=reader.matrix(head, len(rows), shape.hidden),
        factors=reader.maybe(FACTORS, shape.rotated // 2),
        **{name: getattr(shape, name) for name in _SHARED},
    )
    reader.forget()
    if unread := sorted(header.tensors.keys() - reader.names):
        raise unreadable(header, f"the tensor {unread[0]} in native kernels")
    try:
        weights.check()
    except NativeError as error:
        raise ModelError(f"{header.file} can't be computed ({error})", "use another model") from error
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
