"""The float weights of a model to convert, from a GGUF file or a folder in the Hugging Face layout.

Weights are read one by one, large ones in pieces of rows, so that the whole float model is never in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from codespec.models.gguf.architecture import Plan
from codespec.models.gguf.header import Header
from codespec.models.gguf.weights import read_values
from codespec.store.weights import read_header, weight_files

PIECE = 1 << 22  # values per piece


class FloatWeights(Protocol):
    """Weights by their names in the Hugging Face layout."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""
        ...

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, some rows at a time."""
        ...


def read_whole(weights: FloatWeights, name: str, change: Callable[[Tensor], Tensor] = lambda piece: piece) -> Tensor:
    """Read a weight as float32 and apply `change` to each piece; at most one piece is in memory twice."""
    whole, at = torch.empty(weights.shapes[name]), 0
    for piece in weights.pieces(name):
        whole[at : at + len(piece)] = change(piece)
        at += len(piece)
    return whole


class GgufWeights:
    """The weights of an open GGUF file."""

    def __init__(self, header: Header, plan: Plan, stack: ExitStack) -> None:
        self._header = header
        self._weights = {weight.name: weight for weight in plan.weights}
        stream = stack.enter_context(header.file.open("rb"))
        self._data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""
        return {name: weight.shape for name, weight in self._weights.items()}

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, some rows at a time."""
        for values in read_values(self._header, self._weights[name], self._data):
            yield torch.from_numpy(values)
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._data.madvise(mmap.MADV_DONTNEED)  # else pages already read count as this process's memory


class FolderWeights:
    """The weights of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in weight_files(folder):
            tensors = [tensor for tensor in read_header(file) if not tensor.is_buffer]
            opened = stack.enter_context(safe_open(file, framework="pt"))
            self._files |= dict.fromkeys((tensor.name for tensor in tensors), opened)
            self._shapes |= {tensor.name: tensor.shape for tensor in tensors}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""
        return self._shapes

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, some rows at a time."""
        yield from (piece.float() for piece in self.stored_pieces(name))

    def stored_pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as it is stored, some rows at a time."""
        stored, shape = self._files[name].get_slice(name), self._shapes[name]
        step = max(1, PIECE // max(1, shape[-1])) if len(shape) > 1 else shape[0]
        for first in range(0, shape[0], step):
            yield stored[first : first + step]
