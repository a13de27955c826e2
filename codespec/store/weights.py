"""Count the parameters of a model folder and find their number format, from its safetensors headers.

A safetensors file is eight bytes of length, a JSON header and the data. Reads no weights, needs no torch, and
trusts no number in a header until it agrees with the file.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import ModelError
from codespec.files import open_regular, parse_json
from codespec.text.tokenizer_json import read_json

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAX_DIMENSIONS = 64  # of a tensor, torch's own limit; the product of a million sizes takes hours
# Stored constants of old checkpoints, not learned: rotary frequencies and causal masks.
_BUFFER = re.compile(r"(^|\.)(inv_freq|masked_bias|(attn|attention)\.bias)$")
# Bits per number. Other formats are newer than the libraries that load the files.
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_SCALES = ("_scale_inv", "_scales")  # of weights in fp8 and mxfp4
_MXFP4 = "_blocks"  # two numbers in each byte
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a header."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Size in bytes; -1 for an unknown format."""
        return self.count * _BITS[self.dtype] // 8 if self.dtype in _BITS else -1

    @property
    def is_buffer(self) -> bool:
        """Whether it is a stored constant. A one-dimensional bias is not, whatever its name."""
        return _BUFFER.search(self.name) is not None and (len(self.shape) > 1 or not self.name.endswith(".bias"))


Layout = list[tuple[int, StoredTensor]]  # tensors, each with the offset of its first byte


@dataclass(frozen=True, slots=True)
class Weights:
    """Number of parameters, tied ones counted once, and their most common format ("BF16")."""

    parameters: int
    dtype: str


def read_weights(folder: Path, *, tied: bool) -> Weights:
    """Count a folder's parameters. Raises ModelError for missing, truncated or corrupt files.

    If `tied`, the output layer is the embedding, so a second copy in the file does not count.
    """
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file) if not tensor.is_buffer]
    if tied and any(tensor.name.endswith(_EMBEDDINGS) for tensor in tensors):
        tensors = [tensor for tensor in tensors if not tensor.name.endswith(_HEADS)]
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        if not tensor.name.endswith(_SCALES):
            by_dtype[tensor.dtype] += tensor.count * (2 if tensor.name.endswith(_MXFP4) else 1)
    if not by_dtype.total():
        raise ModelError(f"The weights of {folder} are empty", "fetch or export the model again")
    return Weights(by_dtype.total(), by_dtype.most_common(1)[0][0])


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would load: those in the index, else model.safetensors, else all."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict) and index:
        names = sorted(set(map(str, index.values())))
        strange = next((name for name in names if Path(name).name != name), None)
        if strange is not None:
            raise ModelError(
                f"The index of {folder} names {strange!r}, which is not a file in it", "fetch the model again"
            )
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors weights", "convert the model (pickled weights are not read)")
    return files


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of one file. Raises ModelError like `read_layout`."""
    return [tensor for _, tensor in read_layout(file)]


def read_layout(file: Path) -> Layout:
    """Return the tensors of one file, each with the offset of its first byte.

    Raises ModelError unless they are contiguous, each as long as its shape requires, and end at the end of the file.
    """
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if length > min(_MAX_HEADER, size - 8):
                raise ValueError("the header is longer than the file")
            header = parse_json(stream.read(length))
        entries = [_entry(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        why = error.strerror or error
        raise ModelError(f"{file} can't be read ({why})", "fetch or export the model again") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file} is truncated or corrupt", "fetch or export the model again") from error
    at = 0
    for start, end, tensor in sorted(entries, key=lambda entry: entry[:2]):
        if start != at or end - start != tensor.size:
            raise ModelError(f"{file} is corrupt at {tensor.name[:80]!r}", "fetch or export the model again")
        at = end
    if size != 8 + length + at:
        raise ModelError(f"{file} is truncated or corrupt", "fetch or export the model again")
    return [(8 + length + start, tensor) for start, _, tensor in entries]


def _entry(name: str, entry: Any) -> tuple[int, int, StoredTensor]:
    """Return a tensor with its start and end offsets. Raises ValueError and other exceptions for invalid entries."""
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError("it has too many dimensions")
    if not all(type(number) is int and 0 <= number < 1 << 60 for number in (start, end, *shape)):
        raise ValueError("a size is not a whole number")
    return start, end, StoredTensor(name, str(entry["dtype"]), shape)
