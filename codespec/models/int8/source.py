"""The weights of a model to convert, from a GGUF file or a folder in the Hugging Face layout.

Weights are read one by one, large ones in pieces of rows, so that the whole float model is never in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from codespec.models.gguf.header import Header
from codespec.models.gguf.plan import Plan
from codespec.models.gguf.weights import read_values
from codespec.models.stored import Stored


class FloatWeights(Protocol):
    """Weights by their names in the Hugging Face layout."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""
        ...

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, in blocks of rows."""
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
        self.shapes = {name: weight.shape for name, weight in self._weights.items()}
        stream = stack.enter_context(header.file.open("rb"))
        self._data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, in blocks of rows."""
        for values in read_values(self._header, self._weights[name], self._data):
            yield torch.from_numpy(values)
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._data.madvise(mmap.MADV_DONTNEED)  # else pages already read count as this process's memory


class FolderWeights(Stored):
    """The weights of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.shapes = {name: entry.shape for name, entry in self.entries.items() if not entry.is_buffer}

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a weight as float32, in blocks of rows."""
        yield from (piece.float() for piece in self.stored_pieces(name))
