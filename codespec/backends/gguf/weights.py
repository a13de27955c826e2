"""Convert a GGUF file's tensors to float32 in one safetensors file, a few rows at a time.

Uses the package `gguf` for block sizes and dequantization. Holds at most PIECE numbers in memory, or the matrices of
one expert, for any model size. Numbers that bfloat16 represents are written in that format, which halves the file.
float32 represents every value of every format exactly, so the conversion loses nothing.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf.header import Header, Tensor, broken
from codespec.backends.gguf.plan import Weight
from codespec.backends.gguf.settings import unreadable
from codespec.errors import ModelError, install_fix
from codespec.store.model_folder import StoredTensor

PIECE = 1 << 22  # numbers per piece
HALVED = ("BF16", "MXFP4")  # formats whose numbers bfloat16 represents exactly
# Formats whose rows can be dequantized without data from elsewhere.
READABLE = frozenset(
    {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
        *("TQ1_0", "TQ2_0", "MXFP4"),
    }
)


def quantization(header: Header) -> str:
    """Return the name of the format that most numbers are stored in, such as "Q4_1"."""
    numbers: Counter[int] = Counter()
    for tensor in header.tensors.values():
        numbers[tensor.kind] += prod(tensor.shape)
    return _kind(header, numbers.most_common(1)[0][0])


def check_whole(header: Header) -> None:
    """Raise ModelError unless every tensor is readable, lies within the file and overlaps no other tensor.

    This bounds the output to a multiple of the file's size.
    """
    at = 0
    for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.start):
        rows, width = _layout(header, tensor)
        if tensor.start + rows * width > header.size:
            raise broken(header.file, f"it ends within {tensor.name}")
        if tensor.start < at:
            raise broken(header.file, f"{tensor.name} overlaps another tensor")
        at = tensor.start + rows * width


def planned_tensors(header: Header, weights: Sequence[Weight]) -> list[StoredTensor]:
    """Return the converted tensors, in order."""
    return [
        StoredTensor(weight.name, "BF16" if _is_halved(header, weight) else "F32", weight.shape) for weight in weights
    ]


def weight_parts(header: Header, weights: Sequence[Weight]) -> Iterator[tuple[str, memoryview]]:
    """Yield the bytes of the `planned_tensors`, in blocks of rows."""
    with header.file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for weight in weights:
            halved = _is_halved(header, weight)
            for values in read_values(header, weight, data):  # bfloat16 is the upper half of a float32
                part = (values.view(np.uint32) >> 16).astype("<u2") if halved else values.astype("<f4", copy=False)
                yield weight.name, part.data


def _is_halved(header: Header, weight: Weight) -> bool:
    """Return whether bfloat16 represents all numbers of a weight."""
    return (
        not weight.less and not weight.rate and all(_kind(header, source.kind) in HALVED for source in weight.sources)
    )


def read_values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
    """Yield a weight of the model as float32, in blocks of rows. Raise ModelError for a value that is not finite."""
    for values in _values(header, weight, data):
        if not np.isfinite(values).all():
            raise broken(header.file, f"{weight.sources[0].name} holds a value that is not a number")
        if weight.rate:
            if not (values < 0).all():
                raise broken(header.file, f"{weight.sources[0].name} holds a rate that is not negative")
            values = np.log(-values)
        yield values - np.float32(weight.less) if weight.less else values


def _values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
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
    """The rows of one stored tensor."""

    def __init__(self, header: Header, tensor: Tensor, data: mmap.mmap) -> None:
        rows, width = _layout(header, tensor)
        stored = np.frombuffer(data, dtype=np.uint8, count=rows * width, offset=tensor.start)
        self.rows = stored.reshape(rows, width)
        self._kind = tensor.kind

    def take(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the wanted rows as float32. Some formats are dequantized through views of contiguous bytes."""
        gguf: Any = gguf_package()
        stored = np.array(self.rows[wanted])
        values: NDArray[np.float32] = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(self._kind))
        return values


def _gather(stored: Sequence[_Rows], order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return rows by number. The numbers continue from one tensor to the next."""
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
    """Return the number of a tensor's rows, and the bytes per row."""
    gguf: Any = gguf_package()
    name = _kind(header, tensor.kind)
    if name not in READABLE:
        raise ModelError(
            f"{header.file} is quantized as {name}, which can't be read", "choose another format, such as Q8_0"
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
    """Import the package `gguf`, which implements the number formats. Raise ModelError if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        raise ModelError("A GGUF file needs the package gguf", install_fix()) from error
