"""Compute attention over cache slots for the rows of one device step, with a Triton kernel or a torch reference.

Every row sees the keys of its own slot from its window's start to its own position. Rows in no tile are padding and
become zeros. On a CUDA device the kernel reads all lengths on the device; elsewhere the reference reads the tiles on
the host. The reference computes in float32, with query rows in multiples of `QUERY_ROWS` and keys block by block, so
that a row's bits don't depend on its neighbours or on later positions (measured on a CPU, like `torch.attention`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

from codespec.backends.torch.call_shape import KEY_BLOCK, Scoring
from codespec.backends.torch.cuda.launch import DeviceRows
from codespec.errors import ModelError

QUERY_ROWS = 16
NO_TRITON = "install Triton (pip install triton, it comes with torch's CUDA builds on Linux) or choose device cpu"


def slot_attention(query: Tensor, keys: Tensor, values: Tensor, rows: DeviceRows, scoring: Scoring) -> Tensor:
    """Attend query [N, heads, size] over keys [slots + 1, kv_heads, C, size] and values [slots + 1, kv_heads, C,
    value_size], whose last slot is scratch -> [N, heads, value_size].

    A row at position p sees the keys max(0, p - window + 1)…p, or 0…p without a window. Softmax and sums are float32.
    """
    if query.device.type == "cuda":
        from codespec.backends.torch.cuda.attention_kernels import (
            attend_tiles,  # needs Triton, which only GPU machines have
        )

        return attend_tiles(query, keys, values, rows, scoring)
    return reference(query, keys, values, rows, scoring)


def require_triton(feature: str) -> None:
    """Raise ModelError if Triton, which `feature` needs, is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise ModelError(f"{feature} needs Triton, which is not installed", NO_TRITON)


def reference(query: Tensor, keys: Tensor, values: Tensor, rows: DeviceRows, scoring: Scoring) -> Tensor:
    """Compute `slot_attention` in torch, one run of consecutive rows at a time."""
    out = query.new_zeros(query.shape[0], query.shape[1], values.shape[3])
    for slot, first, begin, count in stretches(rows.tiles):
        assert first + count <= min(rows.reach, keys.shape[2]), "a row lies beyond the step's reach"
        end = begin + count
        stop = first + count + -(first + count) % KEY_BLOCK
        out[begin:end] = _stretch(query[begin:end], keys[slot, :, :stop], values[slot, :, :stop], first, scoring)
    return out


def stretches(tiles: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Merge adjacent tiles [T, 4] of one sequence. Yield each run's slot, first position, first flat row and length."""
    run: tuple[int, int, int, int] | None = None
    for slot, first, begin, count in tiles.tolist():
        if not count:
            continue
        if run is not None and (slot, first, begin) == (run[0], run[1] + run[3], run[2] + run[3]):
            run = (*run[:3], run[3] + count)
            continue
        if run is not None:
            yield run
        run = (slot, first, begin, count)
    if run is not None:
        yield run


def _stretch(query: Tensor, keys: Tensor, values: Tensor, first: int, scoring: Scoring) -> Tensor:
    """Attend rows [T, heads, size] at positions first, first + 1, … over keys [kv_heads, L, size] -> [T, heads,
    value_size]. Keys are whole blocks, except at the slot's end.
    """
    count, heads, size = query.shape
    kv_heads, length, value_size = values.shape
    groups = heads // kv_heads
    padded = count + -count % (QUERY_ROWS // gcd(groups, QUERY_ROWS))
    folded = query.new_zeros(padded, kv_heads, groups, size, dtype=torch.float32)
    folded[:count] = query.view(count, kv_heads, groups, size)
    scores = torch.matmul(folded.permute(1, 2, 0, 3).reshape(kv_heads, -1, size), keys.float().transpose(1, 2))
    scores = scoring.bounded(scores * scoring.scale)
    hidden = _hidden(first, padded, length, scoring.window, query.device)
    scores = scores.view(kv_heads, groups, padded, length).masked_fill_(hidden, -torch.inf)
    weights = _softmax(scores, scoring.sinks).view(kv_heads, -1, length)
    out = query.new_zeros(kv_heads, groups * padded, value_size, dtype=torch.float32)
    for start in range(0, length, KEY_BLOCK):  # block by block, to fix the summation order
        block = slice(start, start + KEY_BLOCK)
        out += torch.matmul(weights[:, :, block], values[:, block].float())
    return out.view(heads, padded, value_size)[:, :count].transpose(0, 1).to(query.dtype)


def _hidden(first: int, count: int, length: int, window: int, device: torch.device) -> Tensor:
    """Return the mask [count, length] of keys hidden from rows at positions first, first + 1, …; every row sees at
    least one key.
    """
    row = torch.arange(first, first + count, device=device).clamp(max=length - 1)[:, None]
    column = torch.arange(length, device=device)
    hidden = column > row
    return hidden | (column <= row - window) if window else hidden


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax weights of scores [kv_heads, groups, T, L].

    A sink adds one score to every row, whose weight is dropped.
    """
    if sinks is None:
        return torch.softmax(scores, dim=3)
    kv_heads, groups, count, _ = scores.shape
    sink = sinks.float().view(kv_heads, groups, 1, 1).expand(-1, -1, count, -1)
    return torch.softmax(torch.cat([sink, scores], dim=3), dim=3)[..., 1:]
