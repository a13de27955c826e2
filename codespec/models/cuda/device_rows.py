"""The rows of one step as a device sees them: flat tensors at fixed addresses, filled by a single copy.

A captured graph reads the same memory at every replay, so everything about a step must be in these tensors: the slot
that a row writes to, its position, and how far its sequence reaches. Rows that only fill a bucket have id 0 and
position 0 and write to the cache's scratch slot, which nothing reads. Knows slots and positions; knows no model and no
attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codespec.models.rows import Rows, kept_rows

TILE_ROWS = 16  # query rows that attention computes at once: positions times the heads that share keys
INTS = 4  # a tile's numbers


@dataclass(slots=True)
class DeviceRows:
    """What layers and attention read in a step of N rows.

    ids        [N] int64: tokens
    positions  [N] int64: of each row in its sequence
    slots      [N] int64: the cache slot that each row writes to
    tiles      [T, 4] int32, T ≤ N: slot, first position, first flat row, rows; a tile is up to TILE_ROWS / groups
               consecutive rows of one sequence, and a row sees the keys of its slot up to its own position. Unused
               tiles have 0 rows, and rows in no tile are padding.
    reach      the most keys that any row may see, rounded up to a bucket: a bound for grids, not a length
    attend     takes each call of attention while a step is captured in parts; None: attention is called directly
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tensor
    reach: int
    attend: Callable[[Callable[[], Tensor]], Tensor] | None = None


def tile_positions(groups: int) -> int:
    """Positions of one tile where `groups` query heads share a head of keys."""
    return max(1, TILE_ROWS // groups)


def tiles_of(batch: Sequence[Rows], size: int) -> Iterator[tuple[int, int, int, int]]:
    """The tiles of up to `size` positions that cover a batch laid out flat, in the order of `DeviceRows.tiles`."""
    flat = 0
    for rows in batch:
        count = len(rows.ids)
        for first in range(0, count, size):
            yield rows.slot, rows.start + first, flat + first, min(size, count - first)
        flat += count


def most_tiles(rows: int, sequences: int, size: int) -> int:
    """The most tiles that a step of so many rows needs: each sequence may end with one that is not full."""
    return min(rows, sequences + rows // size)


class RowBuffer:
    """Memory for a step of up to `count` rows, on the host (page-locked beside a GPU) and on the device.

    `kept` [count] int64 are the flat rows whose logits are wanted, in order; 0 behind them.
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
        """Lays out a batch and sends it to the device; the rest becomes padding."""
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
