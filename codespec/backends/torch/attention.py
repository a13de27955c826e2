"""Attention for every model, including sliding windows, soft caps and attention sinks.

A forward pass is flat: the rows (tokens) of all sequences form a batch of one, without padding. On a CPU, attention is
computed span by span; on a GPU, a single kernel computes the attention of all rows (`slot_attention`). Query heads that
share a key head are folded into query rows, so keys and values are not expanded.

In exact mode, every call of torch's attention kernel has the same number of query rows and whole blocks of keys, so a
row's bits do not depend on other rows. Whole blocks are needed because a product over more than 192 keys splits its sum
by the number of keys: with 256 keys, one of 1,700 bfloat16 rows changed with the length of the text after the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from codespec.backends.language_model import CAPACITY_UNIT
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.cuda.launch import DeviceRows, Scoring
from codespec.backends.torch.linear import ROWS
from codespec.backends.torch.recurrent_states import StatePlan, States

NAME = "codespec"
KEY_BLOCK = 512  # keys per block, as in torch's CPU attention
HEAD_UNIT = 32  # head sizes are padded to a multiple of this: with AMX a NaN in one row may otherwise reach other rows
REFERENCE_ROWS = 16  # the reference of `slot_attention` pads query rows to a multiple of this
assert CAPACITY_UNIT % KEY_BLOCK == 0


@dataclass(frozen=True, slots=True)
class Span:
    """Rows begin…end-1 of a flat forward pass, at positions start, start+1, … of the sequence in `slot`."""

    slot: int
    start: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows in the span."""
        return self.end - self.begin

    @property
    def length(self) -> int:
        """The length of the sequence in tokens, up to the last row of the span."""
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention parameters of one layer. `groups` is the number of query heads that share a key head."""

    groups: int
    kv_heads: int
    size: int
    value_size: int
    scale: float
    window: int = 0
    softcap: float | None = None
    sinks: bool = False


@dataclass(slots=True)
class ForwardContext:
    """The state of one forward pass: spans (or `rows` on a device), the cache, and values computed once for all layers.

    Without a cache, the forward pass only records the attention parameters of each layer in `heads`. Recurrent layers
    read `states` and `plans`, which holds one plan for each span.
    """

    spans: list[Span]
    cache: KVCache | None
    exact: bool = True
    rows: DeviceRows | None = None
    heads: dict[int, Heads] = field(default_factory=dict)
    slots: Tensor | None = None  # [rows] int64, for rotary embeddings with frequencies for each slot
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    targets: tuple[Tensor, Tensor] | None = None  # slots and positions of all rows
    states: States | None = None
    plans: list[StatePlan] = field(default_factory=list)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [kv_heads, N, size] of all rows to their slots, in one call for all spans."""
        cache = self.cache
        assert cache is not None
        if len(self.spans) == 1:
            cache.write(layer, self.spans[0].slot, self.spans[0].start, keys, values)
            return
        if self.targets is None:
            slots = torch.tensor([span.slot for span in self.spans for _ in range(span.rows)], device=keys.device)
            starts = [torch.arange(span.start, span.length, device=keys.device) for span in self.spans]
            self.targets = slots, torch.cat(starts)
        cache.scatter(layer, *self.targets, keys.transpose(0, 1), values.transpose(0, 1))

    def mask(self, span: Span, queries: Tensor, folded: int, keys: int, window: int) -> Tensor:
        """Return the additive mask [query rows, keys] of a span whose rows are repeated `folded` times."""
        key = (span.slot, folded, queries.shape[1], keys, window)
        if key not in self.masks:
            row = torch.arange(span.start, span.length, device=queries.device).repeat(folded)
            row = torch.cat([row, row[-1:].expand(queries.shape[1] - len(row))])[:, None]  # with padding rows
            seen = torch.zeros((len(row), keys), dtype=queries.dtype, device=queries.device)
            # Finite, so that a fully masked block can't yield NaN.
            self.masks[key] = seen.masked_fill_(_hidden(row, keys, window), torch.finfo(queries.dtype).min)
        return self.masks[key]


class Seam:
    """Holds the context of the current forward pass for all attention modules of one model."""

    def __init__(self) -> None:
        self.context: ForwardContext | None = None

    def attach(self, model: nn.Module) -> None:
        """Store a reference to this object in every module of the model that has a layer index."""
        for module in model.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.codespec_seam = self  # type: ignore[assignment]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Write keys and values [1, kv_heads, N, size] to the cache, and compute attention for query [1, heads, N, size].

    Each row attends only to its own sequence. Return [1, N, heads, value_size], as transformers expects.
    """
    assert attention_mask is None, "transformers built a mask although none is registered"
    seam: Seam = module.codespec_seam  # type: ignore[assignment]
    context = seam.context
    assert context is not None
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, kv_heads, cache = query.shape[1], key.shape[1], context.cache
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    scoring = Scoring(scale, sliding_window or 0, softcap, s_aux)
    if context.rows is not None:
        rows = context.rows
        assert cache is not None
        cache.scatter(layer, rows.slots, rows.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
        out = slot_attention(query[0].transpose(0, 1), cache.keys[layer], cache.values[layer], rows, scoring)
        return out[None], None
    groups = heads // kv_heads
    if cache is None:
        sizes = (groups, kv_heads, key.shape[3], value.shape[3])
        context.heads[layer] = Heads(*sizes, scale, scoring.window, softcap, s_aux is not None)
    else:
        context.write(layer, key[0], value[0])
    parts = []
    for span in context.spans:
        taken = slice(span.begin, span.end)
        keys, values = key[0, :, taken], value[0, :, taken]
        if cache is not None:
            end = span.length + (-span.length % KEY_BLOCK if context.exact else 0)
            keys, values = cache.read(layer, span.slot, end)
        queries = query[0, :, taken].reshape(kv_heads, groups * span.rows, -1)
        attended = attend_span(context, span, queries, keys, values, scoring)
        parts.append(attended.reshape(heads, span.rows, -1).transpose(0, 1))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.contiguous()[None], None  # some layers call `view`


def attend_span(
    context: ForwardContext, span: Span, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
) -> Tensor:
    """Compute attention for a span's folded query [kv_heads, R, size] over keys and values [kv_heads, L, size]."""
    count, value_size, folded = query.shape[1], values.shape[2], query.shape[1] // span.rows
    tiles, each, missing = 1, count, 0
    if context.exact:
        tiles, each, missing = -(-count // ROWS), ROWS, -count % ROWS
        wider, more = -query.shape[2] % HEAD_UNIT, -keys.shape[1] % KEY_BLOCK
        query = pad(query, (0, wider, 0, missing))
        if wider or more:  # values, too: torch's kernel needs equal head sizes
            keys, values = pad(keys, (0, wider, 0, more)), pad(values, (0, wider, 0, more))
    sees_all = span.rows == 1 and not (context.exact or scoring.window or scoring.eager)  # no keys are padding
    mask = None if sees_all else context.mask(span, query, folded, keys.shape[1], scoring.window)
    if scoring.sinks is not None:
        row_sinks = scoring.sinks.reshape(len(query), -1).repeat_interleave(span.rows, dim=1)
        scoring = replace(scoring, sinks=pad(row_sinks.float(), (0, missing)))
    if scoring.eager:
        assert mask is not None
        parts = [slice(tile * each, (tile + 1) * each) for tile in range(tiles)]
        out = torch.cat([_eager(query, keys, values, mask, part, scoring) for part in parts], dim=1)
    else:  # a batch of tiles, whose keys are not copied
        folded_query = query.reshape(len(query), tiles, each, -1).transpose(0, 1)
        seen = None if mask is None else mask.view(tiles, 1, each, -1)
        keys, values = keys.expand(tiles, -1, -1, -1), values.expand(tiles, -1, -1, -1)
        attended = scaled_dot_product_attention(folded_query, keys, values, attn_mask=seen, scale=scoring.scale)
        out = attended.transpose(0, 1).reshape(len(query), tiles * each, -1)
    return out[:, :count, :value_size]


def _eager(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: slice, scoring: Scoring) -> Tensor:
    """Compute attention for `rows` of a query with plain torch operations, for soft caps or sinks [kv_heads, R]."""
    query, mask = query[:, rows], mask[rows]
    blocks = [slice(start, start + KEY_BLOCK) for start in range(0, keys.shape[1], KEY_BLOCK)]
    parts = [torch.matmul(query, keys[:, block].transpose(1, 2)) for block in blocks]  # fixes the order of the sums
    scores = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)).float()
    scores = scoring.bounded(scores * scoring.scale) + mask.float()
    if scoring.sinks is not None:
        scores = torch.cat([scoring.sinks[:, rows, None], scores], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, -keys.shape[1] :].to(values.dtype)
    out = torch.matmul(weights[:, :, blocks[0]], values[:, blocks[0]])
    for block in blocks[1:]:
        out += torch.matmul(weights[:, :, block], values[:, block])
    return out


def _hidden(row: Tensor, keys: int, window: int) -> Tensor:
    """Return a mask [rows, keys] that is true if a key is hidden from a row, given the rows' positions [rows, 1]."""
    column = torch.arange(keys, device=row.device)
    hidden = column > row
    return hidden | (column <= row - window) if window else hidden


def slot_attention(query: Tensor, keys: Tensor, values: Tensor, rows: DeviceRows, scoring: Scoring) -> Tensor:
    """Compute attention for query [N, heads, size] over keys and values [slots + 1, kv_heads, C, size] of all slots.

    A row at position p attends to the keys max(0, p - window + 1)…p of its slot, or 0…p without a window. Softmax and
    sums are computed in float32. The last slot is for padding rows, which belong to no tile and yield zeros. Return
    [N, heads, value_size].
    """
    if query.device.type == "cuda":
        from codespec.backends.torch.cuda.attention_kernels import attend_tiles  # Triton is on GPU machines only

        return attend_tiles(query, keys, values, rows, scoring)
    return reference_slot_attention(query, keys, values, rows, scoring)


def reference_slot_attention(query: Tensor, keys: Tensor, values: Tensor, rows: DeviceRows, scoring: Scoring) -> Tensor:
    """Compute `slot_attention` with torch operations, so that on a CPU a row's bits do not depend on other rows."""
    out = query.new_zeros(query.shape[0], query.shape[1], values.shape[3])
    for slot, first, begin, count in stretches(rows.tiles):
        assert first + count <= min(rows.reach, keys.shape[2]), "a row lies beyond the step's reach"
        end = begin + count
        stop = first + count + -(first + count) % KEY_BLOCK
        out[begin:end] = _stretch(query[begin:end], keys[slot, :, :stop], values[slot, :, :stop], first, scoring)
    return out


def stretches(tiles: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Merge adjacent tiles [T, 4] of one sequence; yield each run's slot, first position, first flat row and length."""
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
    """Compute attention for consecutive rows [T, heads, size] from position `first` over keys [kv_heads, L, size]."""
    count, heads, size = query.shape
    kv_heads, length, value_size = values.shape
    groups = heads // kv_heads
    padded = count + -count % (REFERENCE_ROWS // gcd(groups, REFERENCE_ROWS))
    folded = query.new_zeros(padded, kv_heads, groups, size, dtype=torch.float32)
    folded[:count] = query.view(count, kv_heads, groups, size)
    scores = torch.matmul(folded.permute(1, 2, 0, 3).reshape(kv_heads, -1, size), keys.float().transpose(1, 2))
    scores = scoring.bounded(scores * scoring.scale).view(kv_heads, groups, padded, length)
    row = torch.arange(first, first + padded, device=query.device).clamp(max=length - 1)[:, None]
    scores = scores.masked_fill_(_hidden(row, length, scoring.window), -torch.inf)
    if scoring.sinks is not None:
        sink = scoring.sinks.float().view(kv_heads, groups, 1, 1).expand(-1, -1, padded, -1)
        scores = torch.cat([sink, scores], dim=3)
    weights = torch.softmax(scores, dim=3)[..., -length:].reshape(kv_heads, -1, length)
    out = query.new_zeros(kv_heads, groups * padded, value_size, dtype=torch.float32)
    for start in range(0, length, KEY_BLOCK):  # block by block, to fix the summation order
        block = slice(start, start + KEY_BLOCK)
        out += torch.matmul(weights[:, :, block], values[:, block].float())
    return out.view(heads, padded, value_size)[:, :count].transpose(0, 1).to(query.dtype)


def register() -> None:
    """Register `attend` with transformers, without a mask function, so that transformers builds no mask."""
    from transformers import AttentionInterface  # slow: seconds

    AttentionInterface.register(NAME, attend)
