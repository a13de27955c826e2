"""Batch-invariant attention over cache slots: two Triton kernels and their launcher.

Each program of the first kernel computes the attention of a tile of rows over one split, which is a range of `SPLIT`
keys of one key head that begins at a multiple of `SPLIT`. The second kernel combines the splits of a row in order
(flash decoding, Dao et al. 2023). Tiles are padded to `BLOCK_ROWS` rows, so the matrix instructions are always the
same. Within a split, blocks of keys are processed in order (online softmax, Milakov and Gimelshein 2018). A masked key
adds an exact zero, so a row's bits depend neither on other rows nor on the grid. Scores are scaled for base-2
exponentials. Lengths are read from device memory, so a captured graph is valid for all lengths up to its reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from codespec.backends.torch.cuda.launch import TILE_ROWS, DeviceRows, Scoring, on_own_device, tile_positions
from codespec.backends.torch.cuda.product_kernels import dot

SPLIT = 512
JOINED = 8  # splits per iteration of the second kernel
LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Walk:
    """Parameters of the loop over a split, chosen by head size and dtype alone, which fixes the summation order."""

    keys: int
    warps: int
    stages: int


def walk_of(size: int, dtype: torch.dtype) -> Walk:
    """Return the loop parameters for heads with `size` components."""
    if dtype == torch.float32:
        return Walk(keys=32, warps=4, stages=2)
    return Walk(keys=64 if size <= 128 else 32, warps=4, stages=3)


@on_own_device
def attend_tiles(query: Tensor, keys: Tensor, values: Tensor, rows: DeviceRows, scoring: Scoring) -> Tensor:
    """Implement `codespec.backends.torch.attention.slot_attention` on a CUDA device."""
    query, keys, values = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, keys, values))
    (count, heads, size), (slots, kv_heads, _, value_size) = query.shape, values.shape
    groups, window, softcap, sinks = heads // kv_heads, scoring.window, scoring.softcap, scoring.sinks
    chunks, splits = -(-groups // TILE_ROWS), max_splits(rows.reach, window, groups)
    out = query.new_empty(count, heads, value_size)
    partial = query.new_empty(splits, count, heads, value_size, dtype=torch.float32)
    state = query.new_empty(2, splits, count, heads, dtype=torch.float32)
    walk = walk_of(size, query.dtype)
    sizes = {"SPLIT": SPLIT, "HEADS": heads, "VALUE": value_size, "WINDOW": window}
    sizes["BLOCK_VALUE"] = triton.next_power_of_2(value_size)
    attend[(rows.tiles.shape[0], kv_heads * chunks, splits)](
        query, keys, values, rows.tiles, partial, state, count, splits,
        scoring.scale / (softcap or 1.0), softcap or 0.0,
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


def max_splits(reach: int, window: int, groups: int) -> int:
    """Return the maximum number of splits that a tile's rows can see, which determines grid and buffer sizes."""
    splits = -(-reach // SPLIT)
    if not window:
        return splits
    seen = window + tile_positions(groups) - 1  # from the first row's window to the last row
    return min(splits, -(-(seen - 1) // SPLIT) + 1)


@triton.jit(do_not_specialize=["count", "splits"], do_not_specialize_on_alignment=["tiles"])
def attend(
    query, keys, values, tiles, partial, state, count, splits, scale, softcap,
    query_row, query_head, key_slot, key_head, key_row, value_slot, value_head, value_row,
    CAPPED: tl.constexpr, GROUPS: tl.constexpr, CHUNKS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, VALUE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_VALUE: tl.constexpr,
):  # fmt: skip
    """Compute one split of a tile's attention, in a grid of (tile, key head and chunk of its query heads, split)."""
    tile = tl.program_id(0)
    index = tl.program_id(1) % CHUNKS * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    kv_head = tl.program_id(1) // CHUNKS
    asked, column = tl.arange(0, BLOCK_SIZE), tl.arange(0, BLOCK_VALUE)
    first = tl.load(tiles + tile * 4 + 1)
    last = first + tl.load(tiles + tile * 4 + 3) - 1
    low = 0
    if WINDOW:
        low = tl.maximum(first - WINDOW + 1, 0)
    split = low // SPLIT + tl.program_id(2)
    if (last < first) | (split * SPLIT > last):
        return
    slot = tl.load(tiles + tile * 4).to(tl.int64)
    flat = (tl.load(tiles + tile * 4 + 2) + index // GROUPS).to(tl.int64)
    head = kv_head * GROUPS + index % GROUPS
    position = first + index // GROUPS
    valid = position <= last
    q = query + flat[:, None] * query_row + head[:, None] * query_head + asked[None, :]
    top, weight, sums = walk(
        tl.load(q, valid[:, None] & (asked < SIZE)[None, :], 0.0),
        keys + slot * key_slot + kv_head * key_head, values + slot * value_slot + kv_head * value_head,
        tl.maximum(split * SPLIT, low // BLOCK_KEYS * BLOCK_KEYS), tl.minimum((split + 1) * SPLIT, last + 1),
        position, scale, softcap, key_row, value_row,
        CAPPED, SIZE, BLOCK_SIZE, BLOCK_ROWS, BLOCK_KEYS, VALUE, BLOCK_VALUE, WINDOW,
    )  # fmt: skip
    offset = ((split % splits).to(tl.int64) * count + flat) * HEADS + head
    tl.store(state + offset, top, valid)
    tl.store(state + tl.cast(splits, tl.int64) * count * HEADS + offset, weight, valid)
    held = valid[:, None] & (column < VALUE)[None, :]
    tl.store(partial + offset[:, None] * VALUE + column[None, :], sums, held)


@triton.jit
def walk(
    q, keys, values, start, stop, position, scale, softcap, key_row, value_row,
    CAPPED: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, VALUE: tl.constexpr, BLOCK_VALUE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Read keys start…stop-1; return each row's largest score (base 2), sum of weights and sum of weighted values."""
    asked, column = tl.arange(0, BLOCK_SIZE), tl.arange(0, BLOCK_VALUE)
    top = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_ROWS], tl.float32)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_VALUE], tl.float32)
    for begin in range(start, stop, BLOCK_KEYS):
        key = begin + tl.arange(0, BLOCK_KEYS)
        there = key < stop
        k_there, v_there = there[None, :], there[:, None]
        if SIZE != BLOCK_SIZE:
            k_there = k_there & (asked < SIZE)[:, None]
        if VALUE != BLOCK_VALUE:
            v_there = v_there & (column < VALUE)[None, :]
        k = tl.load(keys + key[None, :] * key_row + asked[:, None], k_there, 0.0)
        scores = dot(q, k, tl.zeros([BLOCK_ROWS, BLOCK_KEYS], tl.float32)) * scale
        if CAPPED:
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2_E)) + 1.0))  # softcap * tanh(scores)
        seen = there[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores * LOG2_E, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key yet: exact zeros, not NaN
        shares = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        weight = weight * shrink + tl.sum(shares, 1)
        v = tl.load(values + key[:, None] * value_row + column[None, :], v_there, 0.0)
        sums = dot(shares.to(v.dtype), v, sums * shrink[:, None])
        top = higher
    return top, weight, sums


@triton.jit(do_not_specialize=["count", "scratch", "splits"], do_not_specialize_on_alignment=["positions", "slots"])
def join(
    partial, state, positions, slots, sinks, out, count, scratch, splits,
    SINKS: tl.constexpr, JOINED: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, VALUE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_VALUE: tl.constexpr,
):  # fmt: skip
    """Combine a row's splits in order, JOINED at a time, in a grid of (row, head); padding rows yield zeros."""
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK_VALUE)
    offset = tl.cast(row, tl.int64) * HEADS + head
    if tl.load(slots + row) == scratch:
        tl.store(out + offset * VALUE + column, tl.zeros([BLOCK_VALUE], tl.float32), column < VALUE)
        return
    position = tl.load(positions + row).to(tl.int32)
    low = 0
    if WINDOW:
        low = tl.maximum(position - WINDOW + 1, 0) // SPLIT
    high = position // SPLIT
    top = tl.full([1], float("-inf"), tl.float32)
    if SINKS:
        top = tl.load(sinks + head + tl.zeros([1], tl.int32)).to(tl.float32) * LOG2_E
    sink = top
    apart = tl.cast(count, tl.int64) * HEADS
    for begin in range(low // JOINED * JOINED, high + 1, JOINED):
        split = begin + tl.arange(0, JOINED)
        live = (split >= low) & (split <= high)
        tops = tl.load(state + (split % splits) * apart + offset, live, float("-inf"))
        top = tl.maximum(top, tl.max(tops, 0, keep_dims=True))
    weight, sums = tl.zeros([1], tl.float32), tl.zeros([1, BLOCK_VALUE], tl.float32)
    for begin in range(low // JOINED * JOINED, high + 1, JOINED):
        split = begin + tl.arange(0, JOINED)
        live = (split >= low) & (split <= high)
        there = (split % splits) * apart + offset
        share = tl.exp2(tl.load(state + there, live, float("-inf")) - top)
        weight += tl.sum(tl.load(state + splits * apart + there, live, 0.0) * share, 0, keep_dims=True)
        held = live[:, None] & (column < VALUE)[None, :]
        parts = tl.load(partial + there[:, None] * VALUE + column[None, :], held, 0.0)
        sums += tl.sum(parts * share[:, None], 0, keep_dims=True)
    if SINKS:
        weight += tl.exp2(sink - top)
    tl.store(out + offset * VALUE + column[None, :], tl.div_rn(sums, weight[:, None]), (column < VALUE)[None, :])
