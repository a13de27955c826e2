"""The tensors of a quantized folder, and what a scheme makes of them: plain weights, read some matrices at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from codespec.errors import ModelError
from codespec.store.weights import StoredTensor as Entry
from codespec.store.weights import read_header, weight_files


@dataclass(frozen=True, slots=True)
class Plain:
    """A weight of the plain model: its name, its shape, and a function that yields it as float32, row after row."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Tensor]]


class Stored:
    """The tensors of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self._files: dict[str, Any] = {}
        for file in weight_files(folder):
            opened = stack.enter_context(safe_open(file, framework="pt"))
            for entry in read_header(file):
                self.entries[entry.name], self._files[entry.name] = entry, opened

    def demand(self, name: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raise ModelError unless a tensor is there with this shape (-1: any size but 0) and one of these formats."""
        entry = self.entries.get(name)
        if entry is None:
            raise self.broken(f"they lack {name}")
        fits = len(entry.shape) == len(shape) and all(
            want == size or (want == -1 and size > 0) for size, want in zip(entry.shape, shape, strict=True)
        )
        if not fits or (dtypes and entry.dtype not in dtypes):
            raise self.broken(f"{name} is {entry.dtype} {list(entry.shape)}")

    def read(self, name: str) -> Tensor:
        """Return a whole tensor."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def part(self, name: str, number: int) -> Tensor:
        """Return one entry of a tensor's first dimension."""
        tensor: Tensor = self._files[name].get_slice(name)[number]
        return tensor

    def broken(self, why: str) -> ModelError:
        """Return the error for tensors that do not fit together."""
        return ModelError(
            f"The quantized weights of {self.folder} do not fit together ({why})", "fetch or export the model again"
        )
