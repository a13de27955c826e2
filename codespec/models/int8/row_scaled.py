"""Take over int8 weights that a quantizer rounded with one scale an output (compressed-tensors' W8A8), bit for bit.

Nothing is rotated, since that would round the weights again. Therefore the norms' gains, which `recipe` folds into the
matrices, are written beside them; `network` recognizes the folder by them. Matrices that the quantizer left alone,
usually the head, are rounded here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.int8.linear import quantize_weight
from codespec.models.int8.recipe import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    HEAD_NORMS,
    NORMS,
    Sizes,
    fused_groups,
    layer_path,
)  # fmt: skip
from codespec.models.int8.source import FolderWeights, read_whole
from codespec.store.row_scaled import SCALE


class RowScaledWeights(FolderWeights):
    """The weights of such a folder; `shapes` leaves the scales out."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self._folder = folder
        self._scaled = {name.removesuffix(SCALE) for name in self._shapes if name.endswith(SCALE)}
        self._shapes = {name: shape for name, shape in self._shapes.items() if not name.endswith(SCALE)}

    def rows(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a matrix as int8 rows [N, in] and their float32 scales [N], some rows at a time."""
        if name not in self._scaled:
            yield from map(quantize_weight, self.pieces(name))
            return
        scale: Tensor = self._files[name + SCALE].get_tensor(name + SCALE).float().flatten()
        if not bool((scale > 0).all()):
            raise ModelError(f"{name}{SCALE} of {self._folder} has a scale of 0 or less", "fetch the model again")
        at = 0
        for codes in self.stored_pieces(name):
            yield codes, scale[at : at + len(codes)]
            at += len(codes)


def plan_gains(weights: RowScaledWeights, sizes: Sizes) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Return the name, dtype and shape of the norms' gains, which follow the other tensors."""
    return [(name, torch.float32, weights.shapes[name]) for name in _gains(sizes)]


def stored_tensors(weights: RowScaledWeights, sizes: Sizes) -> Generator[tuple[str, Tensor], None, None]:
    """Yield the tensors of `recipe.plan_tensors` and `plan_gains`, large ones in pieces of rows."""
    for piece in weights.pieces(EMBEDDING):
        yield EMBEDDING, piece.half()
    for number in range(sizes.layers):
        for name, sources in fused_groups(number).items():
            yield from _matrix(weights, name, sources)
        for name in HEAD_NORMS:
            path = f"{layer_path(number)}.self_attn.{name}.weight"
            if path in weights.shapes:
                yield path, read_whole(weights, path)
    tied = f"{HEAD}.weight" not in weights.shapes
    yield from _matrix(weights, HEAD, (EMBEDDING.removesuffix(".weight") if tied else HEAD,))
    for name in _gains(sizes):
        yield name, read_whole(weights, name)


def _matrix(weights: RowScaledWeights, name: str, sources: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weight, the scales and the bias of one matrix that fuses several."""
    scales = []
    for source in sources:
        for codes, scale in weights.rows(f"{source}.weight"):
            yield f"{name}.weight", codes
            scales.append(scale)
    yield f"{name}.scale", torch.cat(scales)
    if any(f"{source}.bias" in weights.shapes for source in sources):
        yield f"{name}.bias", torch.cat([_bias(weights, source) for source in sources])


def _bias(weights: RowScaledWeights, source: str) -> Tensor:
    if f"{source}.bias" in weights.shapes:
        return read_whole(weights, f"{source}.bias")
    return torch.zeros(weights.shapes[f"{source}.weight"][0])


def _gains(sizes: Sizes) -> list[str]:
    layers = [f"{layer_path(number)}.{name}.weight" for number in range(sizes.layers) for name in NORMS]
    return [*layers, FINAL_NORM]
