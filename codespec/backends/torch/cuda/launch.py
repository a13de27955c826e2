"""Definitions that kernels and their callers share, such as the rows of a step and the summation order of a product.

The summation order (`ProductPlan`) depends on the matrix's shape and dtype, never on the number of rows. The number of
rows affects only the tile size (`tile_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from codespec.backends.language_model import Rows, kept_rows

Rest = ParamSpec("Rest")
Made = TypeVar("Made")
Launcher = Callable[Concatenate[Tensor, Rest], Made]


def on_own_device(launcher: Launcher[Rest, Made]) -> Launcher[Rest, Made]:
    """Make a launcher run on the GPU of its first tensor, because Triton launches kernels on the current device."""

    @wraps(launcher)
    def launch(tensor: Tensor, /, *rest: Rest.args, **named: Rest.kwargs) -> Made:
        device = tensor.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launcher(tensor, *rest, **named)
        with torch.cuda.device(device):
            return launcher(tensor, *rest, **named)

    return launch


TILE_ROWS = 16  # query rows per attention tile: positions times query heads that share a key head
INTS = 4  # numbers per tile


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The inputs of a step of N rows for the layers and for attention.

    A tile holds at most TILE_ROWS / groups consecutive rows of one sequence. Unused tiles have 0 rows, and padding rows
    belong to no tile.
    """

    ids: Tensor  # [N] int64, tokens
    positions: Tensor  # [N] int64, each row's position in its sequence
    slots: Tensor  # [N] int64, the cache slot to which each row is written
    tiles: Tensor  # [T, 4] int32, T ≤ N: slot, first position, first flat row, number of rows
    reach: int  # an upper bound on the keys that any row may see, which determines grid sizes


@dataclass(frozen=True, slots=True)
class Scoring:
    """Parameters with which a layer converts the scores of a row's keys to weights."""

    scale: float
    window: int = 0  # sliding window in tokens; 0: none
    softcap: float | None = None  # bound on the scores (Gemma 2)
    sinks: Tensor | None = None  # [heads], each takes a share of every row's weight (gpt-oss)

    @property
    def eager(self) -> bool:
        """Whether soft caps or sinks rule out torch's attention kernel."""
        return self.softcap is not None or self.sinks is not None

    def bounded(self, scores: Tensor) -> Tensor:
        """Apply the soft cap."""
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


def tile_positions(groups: int) -> int:
    """Return the number of positions per tile for `groups` query heads per key head."""
    return max(1, TILE_ROWS // groups)


def tiles_of(batch: Sequence[Rows], size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield tiles of up to `size` positions that cover a flat batch, in the format of `DeviceRows.tiles`."""
    flat = 0
    for rows in batch:
        count = len(rows.ids)
        for first in range(0, count, size):
            yield rows.slot, rows.start + first, flat + first, min(size, count - first)
        flat += count


def max_tiles(rows: int, sequences: int, size: int) -> int:
    """Return the maximum number of tiles of `rows` rows, since each sequence may end with a partial tile."""
    return min(rows, sequences + rows // size)


class RowBuffer:
    """Buffers for a step of up to `count` rows, on the device and on the host (page-locked if the device is a GPU).

    `kept` [count] int64 lists the flat rows whose logits are needed, padded with 0.
    """

    def __init__(self, count: int, tiles: int, reach: int, scratch: int, device: torch.device) -> None:
        self.count = count
        self._scratch = scratch
        pinned = device.type == "cuda"
        self._host = torch.zeros(4 * count + INTS // 2 * tiles, dtype=torch.int64, pin_memory=pinned)
        self._device = torch.zeros_like(self._host, device=device)
        self._copied = torch.cuda.Event() if pinned else None
        numbers = self._host.numpy()
        self._lines = numbers[: 4 * count].reshape(4, count)  # ids, positions, slots, kept
        self._tiles = numbers[4 * count :].view(np.int32).reshape(tiles, INTS)
        ids, positions, slots, self.kept = self._device[: 4 * count].view(4, count)
        self.rows = DeviceRows(ids, positions, slots, self._device[4 * count :].view(torch.int32).view(-1, INTS), reach)

    def fill(self, batch: Sequence[Rows], tile_size: int) -> None:
        """Write a batch to the buffers and copy them to the device; the remaining rows become padding."""
        if self._copied is not None:
            self._copied.synchronize()  # the last step's copy may still read this memory
        lines, first = self._lines, 0
        lines[:] = 0
        for rows in batch:
            end = first + len(rows.ids)
            lines[0, first:end] = rows.ids
            lines[1, first:end] = range(rows.start, rows.end)
            lines[2, first:end] = rows.slot
            first = end
        lines[2, first:] = self._scratch
        kept, tiles = list(kept_rows(batch)), list(tiles_of(batch, tile_size))
        lines[3, : len(kept)] = kept
        self._tiles[:] = 0
        self._tiles[: len(tiles)] = tiles or 0
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


SPAN_UNIT = 256  # a split's depth is a multiple of this number, which is a multiple of every tile's depth
ENOUGH_PROGRAMS = 96  # minimum for a product of few rows; an H100 has 132 multiprocessors
FEW_ROWS = 128  # up to this number of rows the splits run in parallel


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """The summation order of products with one matrix (`splits`), and the tile and launch options for few rows."""

    splits: int
    columns: int
    depth: int = 128
    warps: int = 4
    stages: int = 4

    def span(self, depth: int) -> int:
        """Return the depth of a split; the last split may be shorter."""
        return -(-depth // (self.splits * SPAN_UNIT)) * SPAN_UNIT


# Plans tuned on a device with tools/tune_kernels.py, by (out, in, bytes per number). `plan_of` guesses all others.
TUNED: dict[tuple[int, int, int], ProductPlan] = {}


def plan_of(columns: int, depth: int, dtype: torch.dtype) -> ProductPlan:
    """Return the plan for a weight [columns, depth], with enough programs to keep all multiprocessors busy."""
    tuned = TUNED.get((columns, depth, dtype.itemsize))
    if tuned is not None:
        return tuned
    width = 64 if columns >= 64 * 2 * ENOUGH_PROGRAMS else 32
    splits = 1
    while splits < 8 and -(-columns // width) * splits < ENOUGH_PROGRAMS and depth >= 4 * splits * SPAN_UNIT:
        splits *= 2
    splits = -(-depth // ProductPlan(splits, width).span(depth))  # without empty splits
    return ProductPlan(splits, width, stages=6 if width == 32 else 4)  # each program has 60 KiB in flight


@dataclass(frozen=True, slots=True)
class Tile:
    """The size of the result that one program computes, the depth of a loop iteration, and Triton's launch options."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile_of(count: int, columns: int, plan: ProductPlan, dtype: torch.dtype) -> Tile:
    """Return the tile size for a product with `count` rows and `columns` columns."""
    if dtype == torch.float32:
        return Tile(16, 32, 32, warps=4, stages=2)
    if count <= 16:
        return Tile(16, plan.columns, plan.depth, plan.warps, plan.stages)
    if count <= 32 or plan.splits > 1:
        wide = -(-count // 32) * -(-columns // 64) * plan.splits >= ENOUGH_PROGRAMS
        return Tile(32, 64 if wide else 32, 64, warps=4, stages=4)
    # With four warps Triton emits other instructions for 64 rows.
    if -(-count // 64) * -(-columns // 128) < 2 * ENOUGH_PROGRAMS:
        return Tile(64, 64, 64, warps=2, stages=4)
    return Tile(64, 128, 32, warps=2, stages=4)
