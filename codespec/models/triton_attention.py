"""Launches the slot attention kernels: a row's bits are its own, whatever is computed beside it.

One program takes a tile of rows, one head of keys and one split of `SPLIT` keys by absolute position. Lengths are read
on the device, so a captured graph stays right; `reach` only bounds the grid. Knows tiles and slots; knows no model.
Imports Triton, so only what runs on a GPU (or in Triton's interpreter) imports it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from codespec.models.device_rows import TILE_ROWS, DeviceRows, tile_positions
from codespec.models.kernels.attention import attend, join

SPLIT = 512
JOINED = 8  # splits that the second kernel reads at once


@dataclass(frozen=True, slots=True)
class Walk:
    """How a split is walked: chosen by head size and dtype alone, so that the order of sums is the model's own."""

    keys: int
    warps: int
    stages: int


def walk_of(size: int, dtype: torch.dtype) -> Walk:
    """The walk for heads of `size`."""
    if dtype == torch.float32:
        return Walk(keys=32, warps=4, stages=2)
    return Walk(keys=64 if size <= 128 else 32, warps=4, stages=3)


def attend_tiles(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: DeviceRows,
    scale: float,
    window: int = 0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`models.slot_attention.slot_attention` on a CUDA device."""
    query, keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, keys, values))
    (count, heads, size), (slots, kv_heads, _, value_size) = query.shape, values.shape
    groups = heads // kv_heads
    chunks, splits = -(-groups // TILE_ROWS), most_splits(rows.reach, window, groups)
    out = query.new_empty(count, heads, value_size)
    partial = query.new_empty(splits, count, heads, value_size, dtype=torch.float32)
    state = query.new_empty(2, splits, count, heads, dtype=torch.float32)
    walk = walk_of(size, query.dtype)
    sizes = {"SPLIT": SPLIT, "HEADS": heads, "VALUE": value_size, "WINDOW": window}
    sizes["BLOCK_VALUE"] = triton.next_power_of_2(value_size)
    attend[(rows.tiles.shape[0], kv_heads * chunks, splits)](
        query, keys, values, rows.tiles, partial, state, count, splits,
        scale if softcap is None else scale / softcap, softcap or 0.0,
        *query.stride()[:2], *keys.stride()[:3], *values.stride()[:3],
        CAPPED=softcap is not None, GROUPS=groups, CHUNKS=chunks, SIZE=size,
        BLOCK_SIZE=triton.next_power_of_2(size), BLOCK_ROWS=TILE_ROWS, BLOCK_KEYS=walk.keys,
        num_warps=walk.warps, num_stages=walk.stages, **sizes,
    )  # fmt: skip
    join[(count, heads)](
        partial, state, rows.positions, rows.slots, query if sinks is None else sinks, out, count, slots - 1, splits,
        SINKS=sinks is not None, JOINED=JOINED, num_warps=1, **sizes,
    )  # fmt: skip
    return out


def most_splits(reach: int, window: int, groups: int) -> int:
    """How many splits the rows of a tile can see at most: a bound by the host, for grids and memory."""
    splits = -(-reach // SPLIT)
    if not window:
        return splits
    seen = window + tile_positions(groups) - 1  # from the first row's window to the last row
    return min(splits, -(-(seen - 1) // SPLIT) + 1)
