"""The one attention function under every model. Knows slots, positions, windows, softcaps and sinks; knows no weights,
no tokens and no requests.

A forward is flat: all rows (tokens) of all sequences lie one after another in a batch of one, so no row is padding.
`ForwardContext` says which rows belong to which slot: as spans, which the host computes group by group (`span_groups`),
or as `DeviceRows`, which one kernel reads on the device (`slot_attention`). Grouped heads are folded into query rows
instead of expanding K and V.

Calls have the model's shape (`call_shape`): query rows in a number that keeps a row's bits the same on this processor,
and keys in whole blocks. A product over more than 192 keys splits its sum by the number of keys, so without blocks a
row's bits would depend on how much text follows it in the same forward (with 256 keys 1 of 1,700 bfloat16 rows did).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from codespec.models.cache import KVCache, LayerShape
from codespec.models.call_shape import KEY_BLOCK, UNTRIED, CallShape
from codespec.models.cuda.device_rows import DeviceRows
from codespec.models.cuda.slot_attention import slot_attention
from codespec.models.span_groups import Group, Grouping, Span

NAME = "codespec"


@dataclass(frozen=True, slots=True)
class Heads:
    """A layer's attention without its weights: `groups` query heads share a key head; sizes of a head; the window
    (0: none), the bound of its scores, whether it has sinks.
    """

    groups: int
    kv_heads: int
    size: int
    value_size: int
    scale: float
    window: int = 0
    softcap: float | None = None
    sinks: bool = False

    @property
    def eager(self) -> bool:
        """Whether no kernel of torch computes it."""
        return self.softcap is not None or self.sinks


@dataclass(slots=True)
class ForwardContext:
    """What attention needs to know of one forward: its spans (on a device `rows` instead), the cache that they write to
    (None while shapes are probed), and what is made once for all layers. While shapes are probed it collects `shapes`,
    `heads` and `groups`, the most query heads that share a key head.
    """

    spans: list[Span]
    cache: KVCache | None
    calls: CallShape = UNTRIED
    rows: DeviceRows | None = None
    groups: int = 1
    heads: dict[int, Heads] = field(default_factory=dict)
    shapes: dict[int, LayerShape] = field(default_factory=dict)
    inverse_frequencies: Tensor | None = None  # [rows, rotary_dim / 2], for rotary variants chosen per request
    rotary_scale: Tensor | None = None  # [rows, 1]
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    groupings: dict[tuple[int, bool], Grouping] = field(default_factory=dict)
    targets: tuple[Tensor, Tensor] | None = None  # slots and positions of all rows

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes keys [kv_heads, N, size] and values of all rows to their slots: one call for many spans."""
        cache = self.cache
        assert cache is not None
        if len(self.spans) == 1:
            cache.write(layer, self.spans[0].slot, self.spans[0].start, keys, values)
            return
        if self.targets is None:
            slots = torch.tensor([span.slot for span in self.spans for _ in range(span.rows)], device=keys.device)
            starts = [torch.arange(span.start, span.start + span.rows, device=keys.device) for span in self.spans]
            self.targets = slots, torch.cat(starts)
        slots, positions = self.targets
        cache.scatter(layer, slots, positions, keys.transpose(0, 1), values.transpose(0, 1))

    def group(self, folded: int, alone: bool) -> Grouping:
        """The spans in groups, made once for all layers that fold a row into `folded` query rows of a key head."""
        key = folded, alone
        if key not in self.groupings:
            self.groupings[key] = Grouping.of(self.spans, folded, alone=alone, unit=self.calls.queries)
        return self.groupings[key]

    def read(self, layer: int, group: Group) -> tuple[Tensor, Tensor]:
        """Keys and values of a group's slots [spans, kv_heads, keys, size]."""
        assert self.cache is not None
        end = group.length + -group.length % self.calls.keys
        return self.cache.read_slots(layer, group.spans[0].slot, len(group.spans), end)

    def mask(self, group: Group, queries: Tensor, folded: int, keys: int, window: int) -> Tensor:
        """The mask of a group whose rows are repeated `folded` times, made once for all layers."""
        key = (id(group), folded, queries.shape[2], keys, window)
        if key not in self.masks:
            row = group.positions().to(queries.device).repeat(1, folded)
            self.masks[key] = make_mask(row, queries, keys, window)
        return self.masks[key]


def make_mask(row: Tensor, queries: Tensor, keys: int, window: int) -> Tensor:
    """Additive mask [spans, 1, query rows, keys] for rows at these positions [spans, R]; query rows beyond them see
    what the last one sees. Finite, so that a wholly masked block can't give NaN.
    """
    row = torch.cat([row, row[:, -1:].expand(-1, queries.shape[2] - row.shape[1])], dim=1)[..., None]
    column = torch.arange(keys, device=queries.device)
    hidden = column > row
    if window:
        hidden |= column <= row - window
    seen = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
    return seen.masked_fill_(hidden, torch.finfo(queries.dtype).min)[:, None]


class Seam:
    """Hands the context of the forward under way to every attention module of one model."""

    def __init__(self) -> None:
        self.context: ForwardContext | None = None

    def attach(self, model: nn.Module) -> int:
        """Attaches itself to every attention module; returns how many there are."""
        modules = [m for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int)]
        for module in modules:
            module.codespec_seam = self  # type: ignore[assignment]
        return len(modules)


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
    """Writes K and V [1, kv_heads, N, size] into the slots and attends each row of query [1, heads, N, size] over its
    own sequence. Returns [1, N, heads, value_size], as transformers expects.
    """
    assert attention_mask is None, "transformers built a mask although none is registered"
    seam: Seam = module.codespec_seam  # type: ignore[assignment]
    context = seam.context
    assert context is not None
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, kv_heads = query.shape[1], key.shape[1]
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    if context.rows is not None:
        call = partial(_on_device, context, layer, query, key, value, scale, sliding_window or 0, softcap, s_aux)
        return call() if context.rows.attend is None else context.rows.attend(call), None
    groups, window = heads // kv_heads, sliding_window or 0
    if context.cache is None:
        context.shapes[layer] = (kv_heads, key.shape[3], value.shape[3])
        context.heads[layer] = Heads(
            groups, kv_heads, key.shape[3], value.shape[3], scale, window, softcap, s_aux is not None
        )
        context.groups = max(context.groups, groups)
    else:
        context.write(layer, key[0], value[0])
    grouping = context.group(groups, alone=context.cache is None or softcap is not None or s_aux is not None)
    parts = []
    for group, taken in zip(grouping.groups, grouping.taken, strict=True):
        keys, values = (key[:, :, taken], value[:, :, taken]) if context.cache is None else context.read(layer, group)
        count, queries = len(group.spans), query[0, :, taken]
        if count > 1:
            queries = queries.reshape(heads, count, group.rows, -1).transpose(0, 1)
        queries = queries.reshape(count, kv_heads, groups * group.rows, -1)
        attended = attend_group(context, group, queries, keys, values, scale, window, softcap, s_aux)
        parts.append(attended.reshape(count, heads, group.rows, -1).transpose(1, 2).flatten(0, 1))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (out if grouping.order is None else out[grouping.order])[None], None


def _on_device(
    context: ForwardContext,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """All rows at once; slots and positions come from `rows`, so the host need not know them."""
    rows, cache = context.rows, context.cache
    assert rows is not None and cache is not None
    cache.scatter(layer, rows.slots, rows.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = cache.keys[layer], cache.values[layer]
    return slot_attention(query[0].transpose(0, 1), keys, values, rows, scale, window, softcap, sinks)[None]


def attend_group(
    context: ForwardContext,
    group: Group,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """One group: query [spans, kv_heads, folded * rows, size], head by head, over keys [spans, kv_heads, L, size] ->
    [spans, kv_heads, folded * rows, value_size].
    """
    count, length, calls = query.shape[2], keys.shape[2], context.calls
    value_size = values.shape[3]
    folded, eager = count // group.rows, softcap is not None or sinks is not None
    tiles, each = calls.query_tiles(count)
    wider = -query.shape[3] % calls.sizes  # of values too: torch's kernel takes heads of one size only
    if (missing := tiles * each - count) or wider:
        query = pad(query, (0, wider, 0, missing))
    if (more := -length % calls.keys) or wider:
        keys, values = pad(keys, (0, wider, 0, more)), pad(values, (0, wider, 0, more))
    only = len(group.spans) == 1 and group.rows == 1
    sees_all = only and calls.keys == 1 and not (window or eager)  # and no block of keys has rows beyond it
    mask = None if sees_all else context.mask(group, query, folded, keys.shape[2], window)
    of_rows = None if sinks is None else sinks.reshape(query.shape[1], -1).repeat_interleave(group.rows, dim=1)
    return attend_tiles(query, keys, values, mask, scale, softcap, of_rows, tiles)[:, :, :count, :value_size]


def attend_tiles(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
    tiles: int,
) -> Tensor:
    """Attention in `tiles` calls of as many query rows each: query [spans, kv_heads, R, size] over keys [spans,
    kv_heads, L, size] with mask [spans, 1, R, L] -> [spans, kv_heads, R, value_size]. `sinks` [kv_heads, ≤ R].
    """
    if softcap is not None or sinks is not None:
        assert mask is not None and len(query) == 1
        if sinks is not None:
            sinks = pad(sinks.float(), (0, query.shape[2] - sinks.shape[1]))
        each = query.shape[2] // tiles
        parts = [
            _eager(
                query[0, :, rows], keys[0], values[0], mask[0, 0, rows], scale, softcap,
                None if sinks is None else sinks[:, rows],
            )
            for rows in (slice(tile * each, (tile + 1) * each) for tile in range(tiles))
        ]  # fmt: skip
        return (parts[0] if tiles == 1 else torch.cat(parts, dim=1))[None]
    if tiles == 1:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    spans, kv_heads, count, size = query.shape
    each = count // tiles
    if spans > 1:  # one batch of all tiles would copy the keys of several spans
        rows = [slice(tile * each, (tile + 1) * each) for tile in range(tiles)]
        masks = [None if mask is None else mask[:, :, part] for part in rows]
        found = [
            scaled_dot_product_attention(query[:, :, part], keys, values, attn_mask=seen, scale=scale)
            for part, seen in zip(rows, masks, strict=True)
        ]
        return torch.cat(found, dim=2)
    folded = query.reshape(kv_heads, tiles, each, size).transpose(0, 1)
    seen = None if mask is None else mask.view(tiles, 1, each, -1)
    keys, values = keys.expand(tiles, -1, -1, -1), values.expand(tiles, -1, -1, -1)
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=seen, scale=scale)
    return out.transpose(0, 1).reshape(1, kv_heads, count, -1)


def _eager(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention in plain torch, for soft-capped scores (Gemma 2) and sinks (gpt-oss): [kv_heads, R, size] -> the same.
    `sinks` [kv_heads, R] holds one for each row.
    """
    blocks = [slice(start, start + KEY_BLOCK) for start in range(0, keys.shape[1], KEY_BLOCK)]
    parts = [torch.matmul(query, keys[:, block].transpose(1, 2)) for block in blocks]  # so the sums' order is fixed
    scores = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask.float()
    if sinks is not None:
        scores = torch.cat([sinks[:, :, None], scores], dim=2)
        weights = torch.softmax(scores, dim=2)[:, :, 1:]
    else:
        weights = torch.softmax(scores, dim=2)
    weights = weights.to(values.dtype)
    out = torch.matmul(weights[:, :, blocks[0]], values[:, blocks[0]])
    for block in blocks[1:]:
        out += torch.matmul(weights[:, :, block], values[:, block])
    return out


def register() -> None:
    """Registers `attend` with transformers, and no mask function, so that transformers builds no mask of its own."""
    from transformers import AttentionInterface  # takes seconds, and int8 networks call `attend` themselves

    AttentionInterface.register(NAME, attend)
