"""Plan the conversion of a GGUF file, and convert its tensors to float32 or bfloat16 a few rows at a time.

A plan holds the content of config.json and, for each weight, the GGUF tensors that the weight is converted from. A file
with an unknown setting or tensor is rejected, because ignoring a bias or a rotary scaling would silently change every
output.

The package `gguf` dequantizes the rows. At most PIECE numbers, or the matrices of one expert, are in memory at a time.
Weights in formats that bfloat16 represents exactly are stored in bfloat16, and all others in float32, which represents
every format exactly.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf.architectures import ARCHITECTURES, OUTER, Architecture, Stack
from codespec.backends.gguf.header import Header, Tensor, broken
from codespec.backends.gguf.settings import FACTORS, LONG, SHORT, Json, Settings, read_rotary, unreadable
from codespec.errors import ModelError, install_fix
from codespec.store.model_folder import StoredTensor

_SOFTMAX = 1  # code of a router's function, which is softmax in files without this setting, too
PIECE = 1 << 22  # numbers that are converted at a time
HALVED = ("BF16", "MXFP4")  # formats whose numbers bfloat16 represents exactly
# Formats whose rows can be dequantized without data from elsewhere.
READABLE = frozenset(
    {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
        *("TQ1_0", "TQ2_0", "MXFP4"),
    }
)


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the converted model, with `name` and `shape`.

    sources  tensors of the file that contain the rows
    rows     order of the sources' rows, which are numbered across all sources (None: unchanged)
    less     constant that is subtracted from all values
    columns  order of the columns (None: unchanged)
    rate     whether the logarithm of the negated values is stored
    turned   number of rows of each matrix that is transposed (0: no matrix is transposed)
    """

    name: str
    sources: tuple[Tensor, ...]
    shape: tuple[int, ...]
    rows: NDArray[np.int64] | None = None
    less: float = 0.0
    columns: NDArray[np.int64] | None = None
    rate: bool = False
    turned: int = 0


def make_plan(header: Header) -> tuple[Json, list[Weight]]:
    """Return config.json's content (no token ids) and all weights. Raise ModelError for an unsupported model."""
    settings = Settings(header)
    known = ARCHITECTURES.get(settings.name)
    if known is None:
        raise ModelError(
            f"{header.file} has the architecture {settings.name or 'unknown'!r}, which can't be converted",
            f"use the model's folder in the Hugging Face layout (supported in GGUF files: {', '.join(ARCHITECTURES)})",
        )
    saved = {"architectures": [known.class_name], "model_type": known.kind, "dtype": "float32", "use_cache": True}
    config = saved | known.config(settings, _common(settings, known))
    settings.refuse_rest()
    return config, _weights(header, known, config)


def _common(settings: Settings, known: Architecture) -> Json:
    header, heads = settings.header, settings.whole("attention.head_count")
    extra = settings.whole("nextn_predict_layers", 0)  # last layers, which are for drafting only
    layers, hidden = settings.whole("block_count") - extra, settings.whole("embedding_length")
    embedding = header.tensors.get("token_embd.weight")
    if not 0 < heads <= hidden or not 0 < layers <= 10_000 or embedding is None or embedding.shape[1:] != (hidden,):
        raise broken(header.file, "its sizes do not fit together")
    head = settings.whole("attention.key_length", hidden // heads)
    value = settings.whole("attention.value_length", hidden // heads)
    rotated = settings.whole("rope.dimension_count", head)
    if head != value or not (rotated == head or (known.partial and 0 < rotated < head)):
        raise unreadable(header, f"heads of size {head} with values of size {value} and {rotated} rotated dimensions")
    if not any("exps" in stack.sources[0] for stack in known.stacks) and (
        settings.whole("expert_count", 0) or settings.whole("expert_used_count", 0)
    ):
        raise unreadable(header, "a mixture of experts")
    if settings.whole("expert_gating_func", _SOFTMAX) != _SOFTMAX:
        raise unreadable(header, "its choice of experts")
    groups = settings.same("attention.head_count_kv", heads)
    middle = settings.whole("feed_forward_length", settings.whole("expert_feed_forward_length", 0) or None)
    q, k = heads * head, groups * head
    sizes = {"attn_q": q, "attn_k": k, "ffn_up": middle}
    sizes |= {} if known.delta else {"attn_qkv": q + 2 * k}
    for name, size in sizes.items():
        tensor = header.tensors.get(f"blk.0.{name}.weight")
        if tensor is not None and tensor.shape != (size * (1 + (name in known.doubled)), hidden):
            raise broken(header.file, f"{tensor.name} does not have the size in its settings")
    part = {} if rotated == head else {"partial_rotary_factor": rotated / head}
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "max_position_embeddings": settings.whole("context_length"),
        "rope_parameters": read_rotary(settings, rotated) | part,
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _weights(header: Header, known: Architecture, config: Json) -> list[Weight]:
    wanted, stacks = _wanted(known, config), _stacks(known, config)
    extra = header.get(f"{header.get('general.architecture', str, '')}.nextn_predict_layers", int, None)
    used = {source for _, sources, _ in stacks for source in sources}
    drafting = {name for name in header.tensors if _layer_number(name) >= config["num_hidden_layers"] and extra}
    strange = header.tensors.keys() - wanted.keys() - used - drafting - {FACTORS, LONG, SHORT}
    missing = (wanted.keys() | used) - header.tensors.keys()
    if strange:
        raise unreadable(header, f"its tensor {min(strange)}")
    if missing:
        raise broken(header.file, f"it lacks {len(missing)} tensors (first: {min(missing)})")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = []
    for name, target in wanted.items():
        path, _, part = name.rpartition(".")
        tensor, turning = header.tensors[name], heads.get(path.rpartition(".")[2]) if known.twisted else None
        rows = None if turning is None else _untwisted(header, tensor, turning)
        less = known.norm_less if path.endswith("norm") and part == "weight" else 0.0
        weights.append(Weight(target, (tensor,), tensor.shape, rows, less))
    return [*weights, *(_stacked(header, name, sources, stack, config) for name, sources, stack in stacks)]


def _layer_number(name: str) -> int:
    """Return the layer number of a tensor, or -1 if the tensor belongs to no layer."""
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isdecimal() else -1


def _wanted(known: Architecture, config: Json) -> dict[str, str]:
    """Map the names of the tensors that the file must contain, except those of stacks, to their names in the model."""
    whole = {theirs: ours for theirs, ours in OUTER.items() if theirs != "output" or not config["tie_word_embeddings"]}
    biased = set(known.biased(config))
    wanted = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in whole.items()}
    wanted |= {f"{theirs}.bias": f"{ours}.bias" for theirs, ours in whole.items() if theirs in biased}
    for number in range(config["num_hidden_layers"]):
        more = {} if _is_delta(known, config, number) else known.full
        for theirs, ours in {**known.layer, **more}.items():
            for part in ("weight", "bias") if theirs in biased else ("weight",):
                wanted[f"blk.{number}.{theirs}.{part}"] = f"model.layers.{number}.{ours}.{part}"
    return wanted


def _stacks(known: Architecture, config: Json) -> list[tuple[str, tuple[str, ...], Stack]]:
    """Return the stacks of all layers, each with its full name in the model and the full names of its sources."""
    stacks = []
    for number in range(config["num_hidden_layers"]):
        for stack in (*known.stacks, *(known.delta if _is_delta(known, config, number) else ())):
            sources = tuple(f"blk.{number}.{source}" for source in stack.sources)
            stacks.append((f"model.layers.{number}.{stack.name}", sources, stack))
    return stacks


def _is_delta(known: Architecture, config: Json, number: int) -> bool:
    """Return whether a layer is recurrent."""
    return bool(known.delta) and config["layer_types"][number] == "linear_attention"


def _ordered(header: Header, name: str, tensors: tuple[Tensor, ...], stack: Stack, config: Json) -> Weight:
    """Return a weight with reordered rows or columns, or with a dimension that the file omits."""
    shape = tensors[0].shape
    rows = sum(tensor.shape[0] for tensor in tensors)
    order = None if stack.order is None else stack.order(config)
    wanted = shape[-1] if stack.columns else rows
    if any(tensor.shape[1:] != shape[1:] for tensor in tensors) or (order is not None and len(order) != wanted):
        raise broken(header.file, f"{tensors[0].name} does not have the size in its settings")
    out = (rows, *((1,) if stack.kernel else ()), *shape[1:])
    by_row, by_column = (None, order) if stack.columns else (order, None)
    return Weight(name, tensors, out, by_row, columns=by_column, rate=stack.rate)


def _stacked(header: Header, name: str, sources: tuple[str, ...], stack: Stack, config: Json) -> Weight:
    """Return a weight with the rows of all sources, grouped by expert unless the stack defines another order."""
    tensors = tuple(header.tensors[source] for source in sources)
    shape, count = tensors[0].shape, len(tensors)
    if stack.order is not None or stack.kernel or stack.rate:
        return _ordered(header, name, tensors, stack, config)
    if any(tensor.shape != shape for tensor in tensors):
        raise broken(header.file, f"{tensors[0].name} and {tensors[-1].name} differ in size")
    if stack.row:
        return Weight(name, tensors, (1, prod(shape)))
    # An expert's matrix has `shape[-2]` rows, and an expert's bias has one value per row.
    is_vector = sources[0].endswith("bias") or len(shape) == 1
    each = shape[-1] if is_vector else shape[-2]
    whole = prod(shape) if is_vector else prod(shape[:-1])
    order = np.arange(count * whole, dtype=np.int64).reshape(count, whole // each, each)
    order = order.transpose(1, 2, 0) if stack.woven else order.transpose(1, 0, 2)
    ends = (each * count,) if is_vector else (each * count, shape[-1])
    out = (*shape[: len(shape) - len(ends)], *(reversed(ends) if stack.transposed else ends))
    return Weight(name, tensors, out, order.reshape(-1), turned=each * count if stack.transposed else 0)


def _untwisted(header: Header, tensor: Tensor, heads: int) -> NDArray[np.int64]:
    """Return the order of rows that moves the two rows of each adjacent pair into the two halves of their head."""
    count = tensor.shape[0]
    if not heads or count % (2 * heads):
        raise broken(header.file, f"{tensor.name} does not hold {heads} heads")
    return np.arange(count, dtype=np.int64).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def quantization(header: Header) -> str:
    """Return the name of the format in which most weights of the file are stored, such as "Q4_1"."""
    numbers: Counter[int] = Counter()
    for tensor in header.tensors.values():
        numbers[tensor.kind] += prod(tensor.shape)
    return _kind(header, numbers.most_common(1)[0][0])


def check_whole(header: Header) -> None:
    """Raise ModelError unless every tensor is readable, lies within the file and overlaps no other tensor."""
    at = 0  # without overlaps, the size of the converted model is limited to a multiple of the file's size
    for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
        rows, width = _layout(header, tensor)
        if tensor.start + rows * width > header.size:
            raise broken(header.file, f"it ends within {tensor.name}")
        if tensor.start < at:
            raise broken(header.file, f"{tensor.name} overlaps another tensor")
        at = tensor.start + rows * width


def planned_tensors(header: Header, weights: Sequence[Weight]) -> list[StoredTensor]:
    """Return the names, formats and shapes of the converted tensors."""
    return [
        StoredTensor(weight.name, "BF16" if _is_halved(header, weight) else "F32", weight.shape) for weight in weights
    ]


def weight_parts(header: Header, weights: Sequence[Weight]) -> Iterator[tuple[str, memoryview]]:
    """Yield the bytes of the tensors that `planned_tensors` lists, in blocks of rows."""
    with header.file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for weight in weights:
            halved = _is_halved(header, weight)
            for values in _values(header, weight, data):  # bfloat16 is the upper half of a float32
                part = (values.view(np.uint32) >> 16).astype("<u2") if halved else values.astype("<f4", copy=False)
                yield weight.name, part.data


def _is_halved(header: Header, weight: Weight) -> bool:
    """Return whether bfloat16 represents all numbers of a weight exactly."""
    return (
        not weight.less and not weight.rate and all(_kind(header, source.kind) in HALVED for source in weight.sources)
    )


def _values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
    for values in _stored_values(header, weight, data):
        if not np.isfinite(values).all():
            raise broken(header.file, f"{weight.sources[0].name} holds a value that is not a number")
        if weight.rate:
            if not (values < 0).all():
                raise broken(header.file, f"{weight.sources[0].name} holds a rate that is not negative")
            values = np.log(-values)
        yield values - np.float32(weight.less) if weight.less else values


def _stored_values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
    stored = [_Rows(header, tensor, data) for tensor in weight.sources]
    if len(weight.sources[0].shape) == 1 or weight.sources[0].name.endswith(".bias"):
        values = np.concatenate([source.take(slice(None)).reshape(-1) for source in stored])
        yield np.ascontiguousarray(values if weight.rows is None else values[weight.rows])
        return
    count = sum(len(source.rows) for source in stored)
    order = np.arange(count, dtype=np.int64) if weight.rows is None else weight.rows
    step = weight.turned or max(1, PIECE // weight.sources[0].shape[-1])
    for first in range(0, count, step):
        values = _gather(stored, order[first : first + step])
        values = values if weight.columns is None else values[:, weight.columns]
        yield np.ascontiguousarray(values.T if weight.turned else values)


class _Rows:
    """The rows of one tensor in a GGUF file."""

    def __init__(self, header: Header, tensor: Tensor, data: mmap.mmap) -> None:
        rows, width = _layout(header, tensor)
        stored = np.frombuffer(data, dtype=np.uint8, count=rows * width, offset=tensor.start)
        self.rows = stored.reshape(rows, width)
        self._kind = tensor.kind

    def take(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the selected rows as float32."""
        gguf: Any = gguf_package()
        stored = np.array(self.rows[wanted])  # a contiguous copy, which some formats need
        values: NDArray[np.float32] = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(self._kind))
        return values


def _gather(stored: Sequence[_Rows], order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the rows whose numbers are in `order`; rows are numbered consecutively across all tensors."""
    if len(stored) == 1:
        return stored[0].take(order)
    values, first = None, 0
    for source in stored:
        inside = (order >= first) & (order < first + len(source.rows))
        taken = source.take(order[inside] - first)
        values = np.empty((len(order), taken.shape[1]), dtype=np.float32) if values is None else values
        values[inside] = taken
        first += len(source.rows)
    assert values is not None
    return values


def _layout(header: Header, tensor: Tensor) -> tuple[int, int]:
    """Return the number of rows of a tensor, and the bytes per row. Raise ModelError for an unsupported format."""
    gguf: Any = gguf_package()
    name = _kind(header, tensor.kind)
    if name not in READABLE:
        raise ModelError(
            f"{header.file} is quantized as {name}, which is not supported", "use another format, such as Q8_0"
        )
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
    if tensor.shape[-1] % block:
        raise broken(header.file, f"the rows of {tensor.name} are not whole blocks of {name}")
    return prod(tensor.shape[:-1]), tensor.shape[-1] // block * size


def _kind(header: Header, kind: int) -> str:
    gguf: Any = gguf_package()
    try:
        return str(gguf.GGMLQuantizationType(kind).name)
    except ValueError as error:
        raise unreadable(header, f"its number format {kind}") from error


def gguf_package() -> Any:
    """Import the package `gguf`. Raise ModelError if the package is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        raise ModelError("Reading a GGUF file requires the package gguf", install_fix()) from error
