"""Compute attention for every model, with windows, softcaps and sinks.

A forward is flat: the rows (tokens) of all sequences are concatenated into a batch of one, without padding.
`ForwardContext` maps rows to slots, either as spans, over which the host runs attention one by one, or as `DeviceRows`,
which a single kernel reads on the device (`slot_attention`). Grouped query heads are folded into query rows; K and V
are not expanded.

In exact mode calls have one number of query rows, which keeps a row's bits the same, and keys in whole blocks. A
product over more than 192 keys splits its sum according to the number of keys, so without blocks a row's bits would
depend on the length of the text after it in the same forward (with 256 keys, 1 of 1,700 bfloat16 rows did).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.call_shape import HEAD_UNIT, KEY_BLOCK, ROWS, Scoring, Span
from codespec.backends.torch.cuda.launch import DeviceRows
from codespec.backends.torch.cuda.slot_attention import slot_attention
from codespec.backends.torch.recurrent_states import Plan, States

NAME = "codespec"


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention parameters of one layer, without weights.

    groups      query heads that share a key head
    size        size of query and key heads; `value_size` is the size of value heads
    window      sliding window in tokens; 0: none
    softcap     bound on the scores
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
        """Whether torch has no kernel for this attention."""
        return self.softcap is not None or self.sinks


@dataclass(slots=True)
class ForwardContext:
    """State of one forward: its spans (or `rows` on a device), its cache, and the values computed once for all layers.

    `cache` is None while shapes are probed, which fills `heads`, by layer. `states` and `plans`, one for each span, are
    for recurrent layers.
    """

    spans: list[Span]
    cache: KVCache | None
    exact: bool = True
    rows: DeviceRows | None = None
    heads: dict[int, Heads] = field(default_factory=dict)
    inverse_frequencies: Tensor | None = None  # [rows, rotary_dim / 2], if the rotary variant is chosen per request
    rotary_scale: Tensor | None = None  # [rows, 1]
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    targets: tuple[Tensor, Tensor] | None = None  # slots and positions of all rows
    states: States | None = None
    plans: list[Plan] = field(default_factory=list)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write keys [kv_heads, N, size] and values of all rows to their slots, in one call for all spans."""
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

    def read(self, layer: int, span: Span) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a span's slot, [kv_heads, keys, size] each."""
        assert self.cache is not None
        return self.cache.read(layer, span.slot, span.length + (-span.length % KEY_BLOCK if self.exact else 0))

    def mask(self, span: Span, queries: Tensor, folded: int, keys: int, window: int) -> Tensor:
        """Return the additive mask [query rows, keys] of a span whose rows are repeated `folded` times, cached for all
        layers.

        Padding query rows get the last row's mask. Masked entries are finite, so that a fully masked block can't yield
        NaN.
        """
        key = (span.slot, folded, queries.shape[1], keys, window)
        if key not in self.masks:
            row = torch.arange(span.start, span.length, device=queries.device).repeat(folded)
            row = torch.cat([row, row[-1:].expand(queries.shape[1] - len(row))])[:, None]
            column = torch.arange(keys, device=queries.device)
            hidden = column > row
            if window:
                hidden |= column <= row - window
            seen = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
            self.masks[key] = seen.masked_fill_(hidden, torch.finfo(queries.dtype).min)
        return self.masks[key]


class Seam:
    """The context of the current forward, shared by all attention modules of one model."""

    def __init__(self) -> None:
        self.context: ForwardContext | None = None

    def attach(self, model: nn.Module) -> None:
        """Attach to every module of the model that has a layer's index."""
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
    """Write K and V [1, kv_heads, N, size] to the slots and attend query [1, heads, N, size], each row over its own
    sequence. Return [1, N, heads, value_size], as transformers expects.
    """
    assert attention_mask is None, "transformers built a mask although none is registered"
    seam: Seam = module.codespec_seam  # type: ignore[assignment]
    context = seam.context
    assert context is not None
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, kv_heads = query.shape[1], key.shape[1]
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    scoring = Scoring(scale, sliding_window or 0, softcap, s_aux)
    if context.rows is not None:
        return _on_device(context, layer, query, key, value, scoring), None
    groups = heads // kv_heads
    if context.cache is None:
        sizes = (groups, kv_heads, key.shape[3], value.shape[3])
        context.heads[layer] = Heads(*sizes, scale, scoring.window, softcap, s_aux is not None)
    else:
        context.write(layer, key[0], value[0])
    parts = []
    for span in context.spans:
        taken = slice(span.begin, span.end)
        keys, values = (key[0, :, taken], value[0, :, taken]) if context.cache is None else context.read(layer, span)
        queries = query[0, :, taken].reshape(kv_heads, groups * span.rows, -1)
        attended = attend_span(context, span, queries, keys, values, scoring)
        parts.append(attended.reshape(heads, span.rows, -1).transpose(0, 1))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.contiguous()[None], None  # some layers call `view`


def _on_device(
    context: ForwardContext, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
) -> Tensor:
    """Attend all rows in one call, with the slots and positions in `rows`, which stay on the device."""
    rows, cache = context.rows, context.cache
    assert rows is not None and cache is not None
    cache.scatter(layer, rows.slots, rows.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = cache.keys[layer], cache.values[layer]
    return slot_attention(query[0].transpose(0, 1), keys, values, rows, scoring)[None]


def attend_span(
    context: ForwardContext, span: Span, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
) -> Tensor:
    """Attend one span: query [kv_heads, folded * rows, size], head by head, over keys [kv_heads, L, size] ->
    [kv_heads, folded * rows, value_size].
    """
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
    """Attend `rows` of query [kv_heads, R, size] in plain torch, for soft-capped scores (Gemma 2) and sinks (gpt-oss)
    -> [kv_heads, rows, value_size]. Sinks [kv_heads, R] have one value per row.
    """
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


def register() -> None:
    """Register `attend` with transformers. No mask function is registered, so transformers builds no mask."""
    from transformers import AttentionInterface  # slow: seconds

    AttentionInterface.register(NAME, attend)
