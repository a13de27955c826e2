"""The one attention function under every model. Knows slots, positions, windows, softcaps and sinks; knows no layer's
weights, no tokens and no requests.

A forward is flat: all rows (tokens) of all sequences lie behind one another in a batch of one, so no row is padding.
`Step` says which rows belong to which slot: as spans, which the host walks through group by group (`span_groups`), or
as `DeviceRows`, which one kernel reads on the device (`slot_attention`). Grouped heads are folded into query rows
instead of expanding K and V.

In `exact` mode the query rows of a head of keys come in multiples of `QUERY_ROWS` and its keys in multiples of
`KEY_BLOCK`. Measured on a CPU (0 of 4,100 comparisons differ, float32 and bfloat16, head sizes 32-128): one to three
rows take other kernels, and a product over more than 192 keys splits its sum by the number of keys, so a row's bits
would depend on how much text follows it in the same forward (with 256 keys 1 of 1,700 bfloat16 rows did).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from codespec.models.cache import CAPACITY_UNIT, KVCache, LayerShape
from codespec.models.device_rows import DeviceRows
from codespec.models.slot_attention import slot_attention
from codespec.models.span_groups import QUERY_ROWS, Group, Grouping, Span

NAME = "codespec"
EAGER_ROWS = 16
KEY_BLOCK = CAPACITY_UNIT


@dataclass(slots=True)
class Step:
    """One forward: its spans (or `rows` instead, on a device), the cache they write to (None while shapes are probed),
    and masks made once for all layers. `groups` is how many query heads share a head of keys, at most.
    """

    spans: list[Span]
    cache: KVCache | None
    exact: bool = True
    rows: DeviceRows | None = None
    groups: int = 1
    shapes: dict[int, LayerShape] = field(default_factory=dict)
    inverse_frequencies: Tensor | None = None  # [rows, rotary_dim / 2], for rotary variants chosen per request
    rotary_scale: Tensor | None = None  # [rows, 1]
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    groupings: dict[tuple[int, bool], Grouping] = field(default_factory=dict)
    places: tuple[Tensor, Tensor] | None = None  # slots and positions of all rows, made once for all layers

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys [kv_heads, N, size] and values of all rows where they belong: one call for many spans."""
        cache = self.cache
        assert cache is not None
        if len(self.spans) == 1:
            cache.write(layer, self.spans[0].slot, self.spans[0].start, keys, values)
            return
        if self.places is None:
            slots = torch.tensor([span.slot for span in self.spans for _ in range(span.rows)], device=keys.device)
            starts = [torch.arange(span.start, span.start + span.rows, device=keys.device) for span in self.spans]
            self.places = slots, torch.cat(starts)
        slots, positions = self.places
        cache.scatter(layer, slots, positions, keys.transpose(0, 1), values.transpose(0, 1))

    def group(self, folded: int, alone: bool) -> Grouping:
        """The spans in groups, made once for all layers in which a row is `folded` query rows of a head of keys."""
        key = folded, alone
        if key not in self.groupings:
            self.groupings[key] = Grouping.of(self.spans, folded, alone=alone)
        return self.groupings[key]

    def read(self, layer: int, group: Group) -> tuple[Tensor, Tensor]:
        """Keys and values of a group's slots [spans, kv_heads, keys, size]."""
        assert self.cache is not None
        end = group.length + (-group.length % KEY_BLOCK if self.exact else 0)
        return self.cache.read_slots(layer, group.spans[0].slot, len(group.spans), end)

    def mask(self, group: Group, queries: Tensor, folded: int, keys: int, window: int) -> Tensor:
        """Additive mask [spans, 1, query rows, keys] of a group whose rows stand `folded` times behind one another;
        query rows beyond them see what the last one sees. Finite, so that a wholly masked block can't give NaN.
        """
        key = (id(group), folded, queries.shape[2], keys, window)
        found = self.masks.get(key)
        if found is None:
            row = group.positions().to(queries.device).repeat(1, folded)
            row = torch.cat([row, row[:, -1:].expand(-1, queries.shape[2] - row.shape[1])], dim=1)[..., None]
            column = torch.arange(keys, device=queries.device)
            hidden = column > row
            if window:
                hidden |= column <= row - window
            seen = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
            found = self.masks[key] = seen.masked_fill_(hidden, torch.finfo(queries.dtype).min)[:, None]
        return found


class Seam:
    """What every attention module of one model holds: the step under way."""

    def __init__(self) -> None:
        self.step: Step | None = None

    def attach(self, model: nn.Module) -> int:
        """Gives itself to every attention module; returns how many there are."""
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
    step = seam.step
    assert step is not None
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, kv_heads = query.shape[1], key.shape[1]
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    if step.rows is not None:
        call = partial(_on_device, step, layer, query, key, value, scale, sliding_window or 0, softcap, s_aux)
        return call() if step.rows.attend is None else step.rows.attend(call), None
    step.shapes[layer] = (kv_heads, key.shape[3], value.shape[3])
    step.groups = max(step.groups, heads // kv_heads)
    if step.cache is not None:
        step.write(layer, key[0], value[0])
    grouping = step.group(heads // kv_heads, alone=step.cache is None or softcap is not None or s_aux is not None)
    parts = []
    for group, taken in zip(grouping.groups, grouping.taken, strict=True):
        keys, values = (key[:, :, taken], value[:, :, taken]) if step.cache is None else step.read(layer, group)
        count, queries = len(group.spans), query[0, :, taken]
        if count > 1:
            queries = queries.reshape(heads, count, group.rows, -1).transpose(0, 1)
        queries = queries.reshape(count, kv_heads, heads // kv_heads * group.rows, -1)
        attended = _group(step, group, queries, keys, values, scale, sliding_window or 0, softcap, s_aux)
        parts.append(attended.reshape(count, heads, group.rows, -1).transpose(1, 2).flatten(0, 1))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (out if grouping.order is None else out[grouping.order])[None], None


def _on_device(
    step: Step,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """All rows at once, each told by `step.rows` where it stands; nothing of the step is known to the host."""
    rows, cache = step.rows, step.cache
    assert rows is not None and cache is not None
    cache.scatter(layer, rows.slots, rows.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = cache.keys[layer], cache.values[layer]
    return slot_attention(query[0].transpose(0, 1), keys, values, rows, scale, window, softcap, sinks)[None]


def _group(
    step: Step,
    group: Group,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """One group: query [spans, kv_heads, folded * rows, size], a folded head's rows behind one another, over keys
    [spans, kv_heads, L, size] -> [spans, kv_heads, folded * rows, value_size].
    """
    count, length = query.shape[2], keys.shape[2]
    folded, eager = count // group.rows, softcap is not None or sinks is not None
    if step.exact:
        if missing := -count % (EAGER_ROWS if eager else QUERY_ROWS):
            query = pad(query, (0, 0, 0, missing))
        if missing := -length % KEY_BLOCK:
            keys, values = pad(keys, (0, 0, 0, missing)), pad(values, (0, 0, 0, missing))
    only = len(group.spans) == 1 and group.rows == 1
    sees_all = only and not (step.exact or window or eager)  # and no block of keys has rows beyond it
    mask = None if sees_all else step.mask(group, query, folded, keys.shape[2], window)
    if mask is not None and eager:
        of_rows = None if sinks is None else sinks.reshape(query.shape[1], -1).repeat_interleave(group.rows, dim=1)
        attended = _eager(query[0], keys[0], values[0], mask[0, 0], scale, softcap, of_rows)[None]
    else:
        attended = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    return attended[:, :, :count]


def _eager(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention by hand, for soft-capped scores (Gemma 2) and for sinks (gpt-oss): [kv_heads, R, size] -> the same.
    Sinks are those of the rows that are looked at, [kv_heads, folded].
    """
    scores = torch.matmul(query, keys.transpose(1, 2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask.float()
    if sinks is not None:
        scores = torch.cat([pad(sinks.float(), (0, query.shape[1] - sinks.shape[1]))[:, :, None], scores], dim=2)
        weights = torch.softmax(scores, dim=2)[:, :, 1:]
    else:
        weights = torch.softmax(scores, dim=2)
    weights = weights.to(values.dtype)
    out = torch.matmul(weights[:, :, :KEY_BLOCK], values[:, :KEY_BLOCK])
    for start in range(KEY_BLOCK, values.shape[1], KEY_BLOCK):  # block by block: the sum's order is fixed
        block = slice(start, start + KEY_BLOCK)
        out += torch.matmul(weights[:, :, block], values[:, block])
    return out


def register() -> None:
    """Makes the seam known to transformers. No mask function is registered, so that it builds no mask of its own."""
    AttentionInterface.register(NAME, attend)
