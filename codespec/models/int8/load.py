"""Load a converted folder into an int8 network, matrix by matrix.

Only packed matrices stay in memory: a thread frees each matrix before it reads the next. The embedding stays in its
file; a step reads a few of its rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.attention import Seam
from codespec.models.int8.blueprint import Blueprint
from codespec.models.int8.kernels import Choice
from codespec.models.int8.network import Int8Network, Read
from codespec.models.int8.recipe import EMBEDDING
from codespec.store.weights import read_header, read_layout

WEIGHTS = "model.safetensors"  # all weights are in one file
_FORMATS = {"I8": np.int8, "F16": np.float16, "F32": np.float32}


def weights_size(folder: Path) -> int:
    """Return the bytes of memory for a converted folder's weights, excluding the embedding, which stays on disk."""
    return sum(tensor.size for tensor in read_header(folder / WEIGHTS) if tensor.name != EMBEDDING)


def load_network(folder: Path, plan: Blueprint, seam: Seam, choice: Choice) -> Int8Network:
    """Load the network of a converted folder. Raise ModelError if weights are missing or do not fit `plan`."""
    try:
        return Int8Network(plan, seam, reader(folder), choice)
    except KeyError as error:
        raise ModelError(
            f"{folder} lacks the weight {error.args[0]}", "remove the folder; the next start converts the model again"
        ) from error
    except (AssertionError, RuntimeError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"The int8 weights in {folder} do not match each other ({why})",
            "remove the folder; the next start converts the model again",
        ) from error


def reader(folder: Path) -> Read:
    """Return a function that reads a folder's tensors by name.

    Matrices are views of the file, which packing copies; vectors are copies.
    """
    file = folder / WEIGHTS
    layout = {tensor.name: (offset, tensor) for offset, tensor in read_layout(file)}

    def read(name: str) -> Tensor:
        offset, tensor = layout[name]
        form = _FORMATS.get(tensor.dtype)
        if form is None:
            raise ModelError(
                f"{file} stores {name} in an unknown form", "remove the folder; the next start converts the model again"
            )
        if len(tensor.shape) > 1:
            return torch.from_numpy(np.memmap(file, form, mode="c", offset=offset, shape=tensor.shape))
        return torch.from_numpy(np.fromfile(file, form, count=tensor.count, offset=offset))

    return read
