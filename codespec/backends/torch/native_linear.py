"""Linear layers of a network that torch computes on a CPU, as products of the native kernels.

For every family whose whole step the kernels do not compute: mixtures of experts, recurrent layers, other norms and
gates. Weights have eight bits in blocks of 32, rounded once at load. A row's product depends on no other row, thread or
instruction set (native/README.md), so these layers are exact as they are.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from codespec_native.library import GROUP, Floats, Matrix, NativeError, Pool, find_path, path_name
from torch import Tensor, nn
from torch.nn.functional import pad

from codespec.backends.native.model import PATH
from codespec.backends.torch.linear import replace_linears, weight_and_bias
from codespec.errors import ModelError

FIX = "use dtype bfloat16"
F32 = 0  # GGUF's number of the format
SMALL = 1 << 18  # weights of a matrix up to which one thread computes a product sooner than several


class Kernels:
    """The instruction set and the threads that the layers of one network share; as many threads as torch's own."""

    def __init__(self) -> None:
        self.path = find_path(os.environ.get(PATH, ""))
        self._single = self._pool = Pool(1)
        self._count = 1

    @property
    def label(self) -> str:
        """The instruction set, for reports."""
        return f"native ({path_name(self.path)}), products alone"

    @property
    def pool(self) -> Pool:
        """As many threads as torch uses now."""
        if (count := torch.get_num_threads()) != self._count:
            self._pool, self._count = Pool(count), count
        return self._pool

    def multiply(self, matrix: Matrix, rows: Floats) -> Floats:
        """Return the product [rows, outputs] of rows [rows, inputs]."""
        small = matrix.outputs * matrix.inputs <= SMALL
        return matrix.multiply(rows, self._single if small else self.pool, self.path)


class NativeLinear(nn.Module):
    """`nn.Linear` with packed weights of eight bits; [*, in] -> [*, out]. Inputs are padded to whole blocks."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> None:
        """Round a weight [out, in], which is not needed afterwards. Raises NativeError if memory is short."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else bias.detach().float()
        self.weight = torch.empty(0)  # some layers read its dtype
        self.missing = -self.in_features % GROUP
        rows = pad(weight.detach().float(), (0, self.missing)).contiguous().numpy()
        self._matrix = Matrix(kernels.pool, F32, len(rows), rows.shape[1], rows.view(np.uint8))
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the product of every row with the weight."""
        rows = inputs.reshape(-1, self.in_features).float()
        if self.missing:
            rows = pad(rows, (0, self.missing))
        out = torch.from_numpy(self._kernels.multiply(self._matrix, rows.numpy()))
        if self.bias is not None:
            out += self.bias
        return out.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)

    @property
    def nbytes(self) -> int:
        """Size of the packed weight in bytes."""
        return self._matrix.nbytes


def pack_linears(network: nn.Module) -> Kernels:
    """Replace every linear layer of a float network in place, one by one; return what they are computed with.

    Raises ModelError without the compiled library, or if memory is short.
    """
    try:
        kernels = Kernels()
        replace_linears(network, lambda layer: NativeLinear(*weight_and_bias(layer), kernels))
    except NativeError as error:
        raise ModelError(f"The native products can't be computed ({str(error).rstrip('.')})", FIX) from error
    return kernels
