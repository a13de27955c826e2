"""Convert a GGUF file's tensors to float32 in one safetensors file, a few rows at a time.

Uses the package `gguf` for block sizes and dequantization. Holds at most PIECE numbers in memory, for any model size.
float32 represents every value of every format exactly, so the conversion adds no loss to that of the quantization.
"""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from codespec.errors import ModelError, install_mend
from codespec.models.gguf.architecture import Weight, unreadable
from codespec.models.gguf.header import Header, Tensor, broken

PIECE = 1 << 22  # numbers per piece
WIDTH = 4  # bytes per float32
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


def size_of(weights: Sequence[Weight]) -> int:
    """Return the size of all weights in float32, in bytes."""
    return sum(WIDTH * prod(weight.source.shape) for weight in weights)


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


def write_weights(header: Header, weights: Sequence[Weight], file: Path) -> None:
    """Write the weights in order. Raise OSError if the disk is full."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for weight in weights:
        shape = weight.source.shape
        entries[weight.name] = {"dtype": "F32", "shape": shape, "data_offsets": (at, at := at + WIDTH * prod(shape))}
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with header.file.open("rb") as source, file.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for weight in weights:
                _write(header, weight, data, stream)


def _write(header: Header, weight: Weight, data: mmap.mmap, stream: BinaryIO) -> None:
    for values in read_values(header, weight, data):
        stream.write(values.astype("<f4", copy=False).data)


def read_values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
    """Yield a weight of the model as float32, some rows at a time. Raise ModelError for a value that is not finite."""
    for values in _values(header, weight, data):
        if not np.isfinite(values).all():
            raise broken(header.file, f"{weight.source.name} holds a value that is not a number")
        yield values - np.float32(weight.less) if weight.less else values


def _values(header: Header, weight: Weight, data: mmap.mmap) -> Iterator[NDArray[np.float32]]:
    gguf: Any = gguf_package()
    tensor = weight.source
    rows, width = _layout(header, tensor)
    stored = np.frombuffer(data, dtype=np.uint8, count=rows * width, offset=tensor.start).reshape(rows, width)
    form = gguf.GGMLQuantizationType(tensor.kind)
    if len(tensor.shape) == 1:
        values = gguf.quants.dequantize(stored.copy(), form).reshape(-1)
        yield np.ascontiguousarray(values if weight.rows is None else values[weight.rows])
        return
    step = max(1, PIECE // tensor.shape[-1])
    for first in range(0, rows, step):
        wanted = slice(first, first + step) if weight.rows is None else weight.rows[first : first + step]
        # Some formats are dequantized through views, which need contiguous bytes.
        yield np.ascontiguousarray(gguf.quants.dequantize(np.array(stored[wanted]), form))


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
        raise ModelError("A GGUF file needs the package gguf", install_mend()) from error
