"""Orthogonal matrices that spread outliers over all channels, so that eight bits represent a row well.

A model's residual stream may use any orthogonal basis if every matrix that reads or writes it uses that basis too; its
norm stays the same (QuaRot: Ashkboos et al. 2024). So this rotation costs nothing when the model runs. It is the
Kronecker product of a random orthogonal matrix and a Hadamard matrix, with random signs.

The input of down_proj is an elementwise product, and no rotation can be moved past that. Its rows are mixed when the
model runs. Knows sizes, no models.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

WIDEST = 128  # of the Hadamard matrix
MIXED = 16  # the most parts of a row that are mixed when the model runs


class Rotation:
    """An orthogonal matrix Q [size, size], the same for equal sizes and seeds."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inner = hadamard(min(size & -size, WIDEST))
        self.outer = _orthogonal(size // len(self.inner), generator)
        self.signs = torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1

    def turn(self, rows: Tensor) -> Tensor:
        """rows [*, size] @ Q."""
        return self._mix(rows * self.signs, self.outer)

    def turn_back(self, rows: Tensor) -> Tensor:
        """rows [*, size] @ Q^T."""
        return self._mix(rows, self.outer.T) * self.signs

    def turn_outputs(self, weight: Tensor) -> Tensor:
        """Q^T @ weight [size, in]: the weight of a layer that writes in the rotated basis."""
        return self.turn(weight.T).T

    def _mix(self, rows: Tensor, outer: Tensor) -> Tensor:
        mixed = rows.reshape(-1, len(outer), len(self.inner)) @ self.inner  # symmetric
        return (outer.T @ mixed).reshape(rows.shape)


def mix(rows: Tensor) -> Tensor:
    """Multiplies rows [N, size] by a Hadamard matrix over `mixed_parts` parts of each row, not normalized. Whole parts
    are added and subtracted, so a row's bits do not depend on other rows.
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
    """Changes a weight [out, size] so that its products with mixed rows equal those with the rows before mixing."""
    parts = mixed_parts(weight.shape[1])
    columns = weight.view(len(weight), parts, -1).transpose(1, 2)
    turned: Tensor = columns @ hadamard(parts) / sqrt(parts)
    return turned.transpose(1, 2).reshape(weight.shape)


def mixed_parts(size: int) -> int:
    """The number of parts of a row that are mixed: a power of two up to MIXED that divides the size."""
    return min(size & -size, MIXED)


def hadamard(size: int) -> Tensor:
    """The normalized Hadamard matrix [size, size] of a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return matrix / sqrt(size)


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(size, size, generator=generator, dtype=torch.float64)
    orthogonal: Tensor = torch.linalg.qr(drawn)[0]
    return orthogonal.float().contiguous()
