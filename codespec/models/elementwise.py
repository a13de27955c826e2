"""Activations whose bits do not depend on how many rows are computed, on any number of threads. Knows torch's loops;
knows no model.

torch computes sigmoid, SiLU and GELU in float32 with vectors, and what is left over at the end of a thread's share with
the C library, whose exponential differs in the last bit. Where shares end depends on the number of rows: with three
threads and 4864 features 16 rows differ from 512 in one value (any processor, torch 2.13). So rows are added until each
share ends with a row and with a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

GRAIN = 32768  # values below which most loops stay on one thread (at::internal::GRAIN_SIZE)
SMALL = 16384  # values above which GELU takes all threads
STRIDE = 64  # values that no vector loop ends within: two of the widest vectors, of two bytes each
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")


def steady_rows(count: int, size: int) -> int:
    """The least number of rows, `count` or more, of `size` values each, whose shares end with rows and vectors."""
    threads = torch.get_num_threads()
    rows = count
    while True:
        values = rows * size
        shares = {min(threads, -(-values // GRAIN)), threads if values > SMALL else 1}
        if all(rows % share == 0 and rows // share * size % STRIDE == 0 for share in shares):
            return rows
        rows += 1


def steady(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """An activation of values [*, size], each row's bits its own: all rows at once and a few more, or, where that is
    many more, in pieces that one thread takes.
    """
    size = values.shape[-1]
    count = values.numel() // size
    rows = steady_rows(count, size) if count else 0
    if rows == count:
        return function(values if size % STRIDE == 0 else values.contiguous())
    if rows > 2 * count and size <= SMALL and size % STRIDE == 0:
        pieces = values.reshape(count, size).split(SMALL // size)
        return torch.cat([function(piece) for piece in pieces]).view(values.shape)
    padded = pad(values.reshape(count, size), (0, 0, 0, rows - count))
    return function(padded)[:count].view(values.shape)


class SteadyActivation(nn.Module):
    """An activation of a transformers layer, row by row."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Tensor:
        """The same values, whatever rows are beside them."""
        return steady(self.function, values)


def replace_activations(model: nn.Module) -> int:
    """Replaces every activation of the model in place; returns how many."""
    found = 0
    for parent in [m for m in model.modules() if m._modules and not isinstance(m, SteadyActivation)]:
        for name, child in list(parent._modules.items()):
            if child is not None and type(child).__module__ in ACTIVATIONS and not child._modules:
                setattr(parent, name, SteadyActivation(child))
                found += 1
    return found
