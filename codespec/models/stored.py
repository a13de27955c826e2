"""Read and write the tensors of safetensors files in blocks of rows, so that no model has to fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.converter import write_weights
from codespec.store.weights import StoredTensor, read_header, weight_files

PIECE = 1 << 22  # values per piece
Planned = tuple[str, torch.dtype, tuple[int, ...]]  # a tensor's name, format and shape
_FORMATS = {torch.int8: "I8", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


class Stored:
    """The tensors of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.entries: dict[str, StoredTensor] = {}
        self._files: dict[str, Any] = {}
        for file in weight_files(folder):
            opened = stack.enter_context(safe_open(file, framework="pt"))
            for entry in read_header(file):
                self.entries[entry.name], self._files[entry.name] = entry, opened

    def read(self, name: str) -> Tensor:
        """Return a whole tensor."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def stored_pieces(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor as it is stored, in blocks of rows."""
        stored, shape = self._files[name].get_slice(name), self.entries[name].shape
        step = max(1, PIECE // max(1, shape[-1])) if len(shape) > 1 else shape[0]
        for first in range(0, shape[0], step):
            yield stored[first : first + step]


def write_tensors(file: Path, planned: Sequence[Planned], tensors: Iterable[tuple[str, Tensor]], mend: str) -> None:
    """Write the planned tensors into a safetensors file as they are made, and print the fraction written.

    Raise ModelError, with `mend`, for a value that is not finite.
    """
    forms = {name: form for name, form, _ in planned}

    def parts() -> Iterator[tuple[str, memoryview]]:
        for name, part in tensors:
            assert part.dtype == forms[name], name
            if part.dtype != torch.int8 and not torch.isfinite(part).all():
                raise ModelError(f"The weight {name} is beyond the range of its format", mend)
            yield name, part.contiguous().flatten().view(torch.uint8).numpy().data

    write_weights(file, [StoredTensor(name, _FORMATS[form], shape) for name, form, shape in planned], parts())
