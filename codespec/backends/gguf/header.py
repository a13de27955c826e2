"""Read the header of a little-endian GGUF file of version 2 or 3: the settings, and the location of each tensor.

Every count and length is checked against the rest of the file before memory is allocated for it, so a corrupt or
hostile header raises ModelError instead of allocating gigabytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from codespec.errors import ModelError

Kind = TypeVar("Kind")
Default = TypeVar("Default")

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 100_000  # of settings and of tensors; the largest models have several thousand
MAX_ELEMENTS = 1 << 24  # of all lists together; the largest vocabularies have 300,000 tokens in each of four lists
MAX_DIMENSIONS = 4
AGAIN = "download or export the model again"

_STRING, _ARRAY = 8, 9
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_NUMPY = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape of a tensor (rows first), its GGUF format number, and its byte offset in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, slots=True)
class Header:
    """The settings of a GGUF file by key, and its tensors by name. A setting is a string, number, boolean or list."""

    file: Path
    size: int
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def get(self, key: str, kind: type[Kind], default: Default) -> Kind | Default:
        """Return a setting, or `default` if the file lacks it. Raise ModelError if the setting has another type."""
        value = self.settings.get(key, default)
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise broken(self.file, f"{key} is of the wrong type")
        return value


def broken(file: Path, why: str) -> ModelError:
    """Return the ModelError for a damaged or malformed file."""
    return ModelError(f"{file} is truncated or corrupt ({why})", AGAIN)


def read_header(file: Path) -> Header:
    """Read a file's header. Raise ModelError if the file is damaged or is not a GGUF file."""
    try:
        with file.open("rb") as stream:
            start = stream.read(24)
            _check_start(file, start)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(file, data).read()
    except OSError as error:
        raise ModelError(f"{file} can't be read ({error.strerror})", "check the path and its permissions") from error


def _check_start(file: Path, start: bytes) -> None:
    if start[:4] != MAGIC:
        raise ModelError(f"{file} is not a GGUF file", "use a GGUF file, a Hugging Face folder or a hub id")
    if len(start) < 24:
        raise broken(file, "it ends within its header")
    (version,) = struct.unpack_from("<I", start, 4)
    if version not in VERSIONS:
        form = "a big-endian GGUF file" if version & 0xFFFF == 0 else f"a GGUF file of version {version}"
        raise ModelError(f"{file} is {form}, which can't be read", "use a little-endian GGUF file of version 3")


class _Reader:
    """Reads the header of a memory-mapped file, and raises ModelError if the file ends too early."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data, self._at = file, data, 8
        self._elements = 0  # of all lists

    def read(self) -> Header:
        tensors, settings = self._number("<Q"), self._number("<Q")
        if max(tensors, settings) > MAX_ENTRIES:
            raise broken(self._file, "its header declares too many entries")
        values: dict[str, Any] = {}
        for _ in range(settings):
            (key,) = self._strings(1)
            if key in values:
                raise broken(self._file, f"{key[:80]!r} occurs twice")
            values[key] = self._value(self._number("<I"))
        table = [self._tensor() for _ in range(tensors)]
        start = self._data_start(values.get("general.alignment", 32))
        located = {name: Tensor(name, shape, kind, start + offset) for name, shape, kind, offset in table}
        if len(located) != tensors:
            raise broken(self._file, "two of its tensors have the same name")
        return Header(self._file, len(self._data), values, located)

    def _data_start(self, alignment: Any) -> int:
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise broken(self._file, "its alignment is not a power of two")
        return -(-self._at // alignment) * alignment

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        (name,), count = self._strings(1), self._number("<I")
        if not 0 < count <= MAX_DIMENSIONS:
            raise broken(self._file, f"{name[:80]!r} has {count} dimensions")
        shape = tuple(self._number("<Q") for _ in range(count))[::-1]
        kind, offset = self._number("<I"), self._number("<Q")
        if not 0 < prod(shape) < 1 << 48 or offset > len(self._data):
            raise broken(self._file, f"{name[:80]!r} is larger than the file")
        return name, shape, kind, offset

    def _value(self, kind: int) -> Any:
        if kind in _FORMATS:
            return self._number(_FORMATS[kind])
        if kind == _STRING:
            return self._strings(1)[0]
        if kind != _ARRAY:
            raise broken(self._file, f"a setting has the unknown type {kind}")
        inside, count = self._number("<I"), self._number("<Q")
        if inside == _STRING:
            self._demand(8 * count, count)
            return self._strings(count)
        if inside not in _NUMPY:
            raise broken(self._file, f"a list has elements of the unknown type {inside}")
        form = np.dtype(_NUMPY[inside])
        self._demand(form.itemsize * count, count)
        return np.frombuffer(self._take(form.itemsize * count), dtype=form).tolist()

    def _strings(self, count: int) -> list[str]:
        """Return `count` strings. The loop avoids function calls for speed: a vocabulary may have 300,000 strings."""
        data, at, end, found = self._data, self._at, len(self._data), []
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > end:
                    raise broken(self._file, "it ends within its header")
                found.append(data[start:at].decode("utf-8"))
        except struct.error as error:
            raise broken(self._file, "it ends within its header") from error
        except UnicodeDecodeError as error:
            raise broken(self._file, "a string in its header is not UTF-8") from error
        self._at = at
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, length: int) -> bytes:
        self._demand(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def _demand(self, length: int, count: int = 0) -> None:
        self._elements += count
        if length > len(self._data) - self._at or self._elements > MAX_ELEMENTS:
            raise broken(self._file, "it ends within its header")
