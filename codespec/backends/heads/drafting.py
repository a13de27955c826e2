"""Draft with a head: read the hidden states (features) that the target computed in a slot, then predict tokens.

The target verifies a head's drafts, so the head need not be batch-invariant and runs in fast mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from codespec.backends.heads.checkpoint import LoadedHead
from codespec.backends.heads.config import HeadConfig
from codespec.backends.heads.networks import DFlash, Eagle3, make_angle_table
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.linear import can_pack, tile_linears
from codespec.backends.torch.model import TorchModel

UNKNOWN = -1


class HeadCache:
    """The keys and values of a head's layers, with the same slots as the target's cache, which updates both.

    The first `done[s]` positions of slot s have been computed from the target's features at these positions and, if
    `shifted`, from the token after each position. `following[s]` is the token after the last computed position.
    """

    def __init__(self, config: HeadConfig, followed: KVCache, target: TorchModel) -> None:
        shapes = dict.fromkeys(range(config.draft_layers), (config.kv_heads, config.head_size, config.head_size))
        self.kept = KVCache(shapes, followed.slots, followed.capacity, target.dtype, target.device)
        self.shifted = config.kind == "eagle3"
        self.done = [0] * followed.slots
        self.following = [UNKNOWN] * followed.slots
        followed.followers.append(self)

    def cut(self, slot: int, length: int) -> None:
        """Invalidate the positions that depend on the target's positions or tokens from `length` on."""
        if length < self.done[slot]:
            self.done[slot] = max(0, length - self.shifted)
            self.following[slot] = UNKNOWN

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the state of slot `source` to slot `target`, for the target's first `length` positions."""
        done = self.done[source]
        self.done[target], self.following[target] = done, self.following[source]
        self.cut(target, length)
        self.kept.fork(source, target, self.done[target])

    def begin(self, slot: int, ids: list[int], length: int) -> int:
        """Return the first position to compute for a text of these ids, of which the target has read `length`.

        The last position is always recomputed, because a draft begins with its result.
        """
        done = min(self.done[slot], length)
        if self.shifted and done and done == self.done[slot] and self.following[slot] not in (UNKNOWN, ids[done]):
            done -= 1
        return max(0, min(done, length - 1))

    def advance(self, slot: int, ids: list[int], done: int) -> None:
        """Record that the first `done` positions of the slot have been computed."""
        self.done[slot] = done
        self.following[slot] = ids[done] if self.shifted else UNKNOWN


@dataclass(slots=True, eq=False)
class Reading:
    """The text of one slot, and the position up to which the head has read the text."""

    slot: int
    ids: list[int]  # the text's tokens; the target has read all but the last
    start: int = 0  # the first position that the head has not read
    state: Tensor | None = field(default=None, repr=False)  # [hidden], EAGLE-3 only

    @property
    def length(self) -> int:
        """The number of positions that the target has read."""
        return len(self.ids) - 1


class HeadRunner:
    """Runs a head on its target's slots, which must already be allocated.

    If `whole`, one forward pass yields a whole draft. `width` is the maximum draft length.
    """

    whole = False
    width: int

    def __init__(self, head: LoadedHead, target: TorchModel) -> None:
        assert target.cache is not None and target.cache.features is not None, "tap the target, then allocate"
        assert target.taps is not None and target.taps.layers == head.config.layers
        self.config, self.ids, self._embed = head.config, head.ids, head.embed
        self._features = target.cache.features
        self.target = target
        self.device, self.dtype = target.device, target.dtype
        self._rotation = make_angle_table(head.config, target.device)
        self.cache = HeadCache(head.config, target.cache, target)
        if target.device.type == "cpu":
            tile_linears(head.network, exact=False, packed=not can_pack(target.dtype))

    def open(self, slot: int, ids: list[int]) -> Reading:
        """Create a `Reading` of the slot's text that starts after the positions in the head's cache."""
        return Reading(slot, ids, self.cache.begin(slot, ids, len(ids) - 1))

    def first(self, readings: Sequence[Reading]) -> Iterable[Tensor]:
        """Run the first forward pass of a draft (the only one if `whole`), and return logits for each text."""
        raise NotImplementedError

    def _read(self, readings: Sequence[Reading], ends: Sequence[int]) -> Any:
        """Compute the positions of each text from its `start` to its end in `ends`."""
        raise NotImplementedError

    def catch_up(self, readings: Sequence[Reading], most: int) -> None:
        """Read up to `most` more positions of each text, but not the last, which is read by `first`."""
        self._read(readings, [min(reading.length - 1, reading.start + most) for reading in readings])

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Return the token embeddings [ids, hidden] in the target's dtype."""
        vectors: Tensor = self._embed(torch.tensor(ids, dtype=torch.long, device=self.device))
        return vectors.to(self.dtype)

    def features(self, reading: Reading, end: int) -> Tensor:
        """Return the target's features [positions, layers, size] from the reading's start to `end`."""
        return self._features[reading.slot, reading.start : end]

    def _angles(self, spans: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return the rotary angles of all positions in the spans."""
        positions = torch.cat([torch.arange(*span, device=self.device) for span in spans])
        return self._rotation.at(torch.empty(0, dtype=self.dtype, device=self.device), positions[None])


class Eagle3Runner(HeadRunner):
    """Runs an EAGLE-3 head, which predicts the first token of a draft in `first` and each later token in `go_on`."""

    def __init__(self, head: LoadedHead, target: TorchModel) -> None:
        assert isinstance(head.network, Eagle3)
        super().__init__(head, target)
        self._head, self.width = head.network, self.cache.kept.capacity

    def first(self, readings: Sequence[Reading]) -> Tensor:
        """Read the rest of every text, and return logits [texts, draft vocabulary] of the next token."""
        return self._read(readings, [reading.length for reading in readings])

    def go_on(self, readings: Sequence[Reading], tokens: Sequence[int], steps: int) -> Tensor:
        """Return logits [texts, draft vocabulary] after `tokens`, the tokens number `steps` (from 1) of the drafts."""
        states = torch.stack([reading.state for reading in readings if reading.state is not None])
        return self._run(readings, states, list(tokens), [(r.length - 1 + steps, r.length + steps) for r in readings])

    def _read(self, readings: Sequence[Reading], ends: Sequence[int]) -> Tensor:
        """Compute the positions of each text up to its end in `ends`, and return the logits of each text's last row."""
        features = torch.cat([self.features(reading, end) for reading, end in zip(readings, ends, strict=True)])
        tokens = [t for r, end in zip(readings, ends, strict=True) for t in r.ids[r.start + 1 : end + 1]]
        spans = [(reading.start, end) for reading, end in zip(readings, ends, strict=True)]
        logits = self._run(readings, self._head.fuse(features), tokens, spans)
        for reading, end in zip(readings, ends, strict=True):
            self.cache.advance(reading.slot, reading.ids, end)
            reading.start = end
        return logits

    def _run(
        self, readings: Sequence[Reading], states: Tensor, tokens: list[int], spans: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Run the layer on rows [N, hidden], one span per text, and return the logits of each text's last row."""
        head, layer = self._head, self._head.midlayer
        angles = self._angles(spans)
        q, k, v = layer.read(self.embed(tokens), states, angles)
        slots = [reading.slot for reading in readings]
        seen = attend_slots(self.cache.kept, 0, slots, spans, q, k, v, causal=True)
        states = layer.finish(states, seen)
        ends = torch.tensor([end - start for start, end in spans]).cumsum(0) - 1
        last = states[ends.to(self.device)]
        for reading, state in zip(readings, last, strict=True):
            reading.state = state
        return head.logits(last)


class DFlashRunner(HeadRunner):
    """Runs a DFlash head, which drafts a whole block of tokens in one forward pass."""

    whole = True

    def __init__(self, head: LoadedHead, target: TorchModel) -> None:
        assert isinstance(head.network, DFlash)
        super().__init__(head, target)
        self._head, self.width = head.network, head.config.block - 1  # without the anchor

    def first(self, readings: Sequence[Reading]) -> list[Tensor]:
        """Return each text's logits [tokens, draft vocabulary] for the next tokens that fit into block and slot."""
        self._read(readings, [reading.length for reading in readings])
        block, capacity = self.config.block, self.cache.kept.capacity
        spans = [(reading.length, min(capacity, reading.length + block)) for reading in readings]
        sizes = [end - start for start, end in spans]
        mask = self._head.mask.to(self.dtype)
        anchors = self.embed([reading.ids[-1] for reading in readings])
        rows = torch.cat([
            torch.cat([anchor[None], mask.expand(size - 1, -1)]) for anchor, size in zip(anchors, sizes, strict=True)
        ])  # fmt: skip
        angles = self._angles(spans)
        slots = [reading.slot for reading in readings]
        for number, layer in enumerate(self._head.layers):
            q, k, v = layer.project(layer.input_layernorm(rows), angles)  # type: ignore[operator]
            rows = layer.finish(rows, attend_slots(self.cache.kept, number, slots, spans, q, k, v, causal=False))  # type: ignore[operator]
        guessed = torch.cat([part[1:] for part in rows.split(sizes)])
        return list(self._head.logits(guessed).split([size - 1 for size in sizes]))

    def _read(self, readings: Sequence[Reading], ends: Sequence[int]) -> None:
        """Compute the keys and values of each text's context up to its end in `ends`."""
        spans = [(reading.start, end) for reading, end in zip(readings, ends, strict=True)]
        context = self._head.fuse(torch.cat([self.features(r, end) for r, end in zip(readings, ends, strict=True)]))
        angles = self._angles(spans)
        for number, layer in enumerate(self._head.layers):
            keys, values = layer.self_attn.keys_values(context, angles)  # type: ignore[union-attr,operator]
            begin = 0
            for reading, (start, end) in zip(readings, spans, strict=True):
                rows = slice(begin, begin + end - start)
                self.cache.kept.write(
                    number, reading.slot, start, keys[rows].transpose(0, 1), values[rows].transpose(0, 1)
                )
                begin = rows.stop
        for reading, end in zip(readings, ends, strict=True):
            self.cache.advance(reading.slot, reading.ids, end)
            reading.start = end


def make_runner(head: LoadedHead, target: TorchModel) -> Eagle3Runner | DFlashRunner:
    """Create a runner for the head, depending on its kind."""
    return Eagle3Runner(head, target) if isinstance(head.network, Eagle3) else DFlashRunner(head, target)


def attend_slots(
    cache: KVCache,
    layer: int,
    slots: Sequence[int],
    spans: Sequence[tuple[int, int]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
) -> Tensor:
    """Write keys and values [N, kv heads, size] to the slots, and compute attention for queries [N, heads, size].

    If `causal`, a row attends to the positions of its slot up to its own, otherwise up to the last new row. Return
    [N, heads, size].
    """
    attended, begin = [], 0
    for slot, (start, end) in zip(slots, spans, strict=True):
        rows = slice(begin, begin + end - start)
        begin = rows.stop
        cache.write(layer, slot, start, k[rows].transpose(0, 1), v[rows].transpose(0, 1))
        keys, values = cache.read(layer, slot, end)
        mask = None
        if causal and end - start > 1:
            positions = torch.arange(end, device=q.device)
            mask = positions[None] <= positions[start:, None]
        queries = q[rows].transpose(0, 1)[None]
        out = scaled_dot_product_attention(queries, keys[None], values[None], attn_mask=mask, enable_gqa=True)
        attended.append(out[0].transpose(0, 1))
    return attended[0] if len(attended) == 1 else torch.cat(attended)
