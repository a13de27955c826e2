"""Orthogonal matrices that spread outliers over all channels, so that eight bits represent a row well.

A model's residual stream may use any orthogonal basis if every matrix that reads or writes it uses the same one; its
norm does not change (QuaRot: Ashkboos et al. 2024). This rotation is therefore free at inference. It is the Kronecker
product of a random orthogonal matrix and a Hadamard matrix, with random signs.

The input of down_proj is an elementwise product, which no rotation commutes with. Its rows are mixed at inference
instead.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

WIDEST = 128  # largest size of the Hadamard matrix
MIXED = 16  # the most parts of a row that are mixed at inference


class Rotation:
    """An orthogonal matrix Q [size, size], determined by its size and seed."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inner = hadamard(min(size & -size, WIDEST))
        self.outer = _orthogonal(size // len(self.inner), generator)
        self.signs = torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1

    def turn(self, rows: Tensor) -> Tensor:
        """Return rows [*, size] @ Q."""
        return self._mix(rows * self.signs, self.outer)

    def turn_back(self, rows: Tensor) -> Tensor:
        """Return rows [*, size] @ Q^T."""
        return self._mix(rows, self.outer.T) * self.signs

    def turn_outputs(self, weight: Tensor) -> Tensor:
        """Return Q^T @ weight [size, in]: the weight of a layer whose output is in the rotated basis."""
        return self.turn(weight.T).T

    def _mix(self, rows: Tensor, outer: Tensor) -> Tensor:
        mixed = rows.reshape(-1, len(outer), len(self.inner)) @ self.inner  # symmetric
        return (outer.T @ mixed).reshape(rows.shape)


def mix(rows: Tensor) -> Tensor:
    """Multiply rows [N, size] by an unnormalized Hadamard matrix over the `mixed_parts` parts of each row.

    Only whole parts are added and subtracted, so a row's bits do not depend on other rows.
    """
    count, size = rows.shape
    mixed, parts = rows, 1
    while parts < mixed_parts(size):
        even, odd = mixed.view(count, parts, 2, -1).unbind(2)
        mixed = torch.empty(count, parts, 2, size // (2 * parts))
        first, second = mixed.unbind(2)
        torch.add(even, odd, out=first)
        torch.sub(even, odd, out=second)
        parts *= 2
    return mixed.view(count, size)


def unmix_columns(weight: Tensor) -> Tensor:
    """Transform a weight [out, size] so that its products with mixed rows equal those with unmixed rows."""
    parts = mixed_parts(weight.shape[1])
    columns = weight.view(len(weight), parts, -1).transpose(1, 2)
    turned: Tensor = columns @ hadamard(parts) / sqrt(parts)
    return turned.transpose(1, 2).reshape(weight.shape)


def mixed_parts(size: int) -> int:
    """Return how many parts of a row to mix: the largest power of two, at most MIXED, that divides `size`."""
    return min(size & -size, MIXED)


def hadamard(size: int) -> Tensor:
    """Return the normalized Hadamard matrix [size, size]; `size` is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return matrix / sqrt(size)


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(size, size, generator=generator, dtype=torch.float64)
    orthogonal: Tensor = torch.linalg.qr(drawn)[0]
    return orthogonal.float().contiguous()
