"""Hold the rows of one step in flat device tensors at fixed addresses, filled by a single copy.

A captured graph reads the same memory at every replay, so these tensors must describe the whole step: each row's slot
and position, and the length of its sequence. Padding rows of a bucket have id 0 and position 0, and write to the
cache's scratch slot, which is never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codespec.backends.rows import Rows, kept_rows

TILE_ROWS = 16  # query rows per attention tile: positions times the query heads that share a key head
INTS = 4  # numbers per tile


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Inputs of the layers and of attention for a step of N rows.

    ids        [N] int64: tokens
    positions  [N] int64: each row's position in its sequence
    slots      [N] int64: the cache slot that each row writes to
    tiles      [T, 4] int32, T ≤ N: slot, first position, first flat row, rows; a tile is up to TILE_ROWS / groups
               consecutive rows of one sequence, and a row sees the keys of its slot up to its own position. Unused
               tiles have 0 rows, and rows in no tile are padding.
    reach      the most keys that any row may see, rounded up to a bucket: an upper bound for grids, not a length
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tensor
    reach: int


def tile_positions(groups: int) -> int:
    """Return the positions per tile for `groups` query heads per key head."""
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
    """Return the most tiles that a step of `rows` rows needs: each sequence may end with a partial tile."""
    return min(rows, sequences + rows // size)


class RowBuffer:
    """Buffers for a step of up to `count` rows, on the device and on the host (page-locked if the device is a GPU).

    `kept` [count] int64 lists the flat rows whose logits are needed, in order, padded with 0.
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
        """Write a batch to the buffers and copy it to the device; the remaining rows become padding."""
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
