"""Store the KV cache of one model in slots.

A slot holds the keys and values of one sequence, indexed by position, so a rollback only sets a length: later positions
are overwritten before they are read. Buffers are sized for the token budget, not for the model's maximum length, and
are initialized with zeros, because even a masked NaN would spread through a product. On a CPU the operating system
zeroes pages on first write, so unused positions cost neither memory nor time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from codespec.backends.language_model import CAPACITY_UNIT, Rows
from codespec.backends.torch.recurrent_states import States, StateShape, zeros
from codespec.backends.torch.rowwise import scatter
from codespec.errors import ModelError

LayerShape = tuple[int, int, int]  # kv heads, key size, value size
NO_STATES: Mapping[int, StateShape] = {}


class Follower(Protocol):
    """State indexed by a cache's slots and positions, updated together with the cache."""

    def cut(self, slot: int, length: int) -> None:
        """Invalidate the slot's positions from `length` on."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Replace the content of slot `target` with the first `length` positions of slot `source`."""


class KVCache:
    """Keys and values of `slots` sequences of up to `capacity` positions, for every layer.

    Capacity is rounded up to a multiple of CAPACITY_UNIT. `scratch` adds a last slot, to which padding rows are
    written and which is never read. If `features` (layers, size) is given, the cache also stores the outputs of the
    tapped layers at every position, for a draft head. `states` gives the sizes of the states of recurrent layers.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        scratch: bool = False,
        features: tuple[int, ...] = (),
        states: Mapping[int, StateShape] = NO_STATES,
    ) -> None:
        self.followers: list[Follower] = []
        self.slots = slots
        self.capacity = capacity = capacity + -capacity % CAPACITY_UNIT
        self.lengths = [0] * slots
        self.keys: dict[int, Tensor] = {}  # layer -> [slots, kv_heads, capacity, key_size]
        self.values: dict[int, Tensor] = {}
        self.nbytes = cache_bytes(shapes, slots, capacity, dtype, features, states)  # without the scratch slot
        allocated = slots + scratch
        try:
            for layer, (heads, key_size, value_size) in shapes.items():
                self.keys[layer] = zeros((allocated, heads, capacity, key_size), dtype, device)
                self.values[layer] = zeros((allocated, heads, capacity, value_size), dtype, device)
            self.features = zeros((allocated, capacity, *features), dtype, device) if features else None
            self.states = States(states, slots, dtype, device) if states else None
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:
            what = f"{self.nbytes / 2**20:.0f} MiB for {slots} cache slots of {capacity} tokens do not fit in memory"
            raise ModelError(what, "lower max_batch or context") from error

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Write keys [kv_heads, T, key_size] and values at positions start…start+T-1."""
        end = start + keys.shape[1]
        assert end <= self.capacity, "a row beyond the end of its slot would be dropped silently"
        self.keys[layer][slot, :, start:end] = keys
        self.values[layer][slot, :, start:end] = values

    def scatter(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write row i of keys [N, kv_heads, key_size] and values to position `positions[i]` of slot `slots[i]`."""
        scatter(self.keys[layer], self.values[layer], slots, positions, keys, values)

    def read(self, layer: int, slot: int, end: int) -> tuple[Tensor, Tensor]:
        """Return views of the first `end` positions, [kv_heads, end, size] each, without a copy."""
        return self.keys[layer][slot, :, :end], self.values[layer][slot, :, :end]

    def resumable(self, slot: int, length: int) -> int:
        """Return the largest length, at most `length`, to which the slot can be rolled back."""
        return length if self.states is None else self.states.resumable(slot, length)

    def rollback(self, slot: int, length: int) -> None:
        """Roll the slot back to `length` positions; `length` must be a value that `resumable` returned."""
        assert 0 <= length <= self.capacity
        self.lengths[slot] = length
        if self.states is not None:
            self.states.cut(slot, length)
        for follower in self.followers:
            follower.cut(slot, length)

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another, so that alternative texts share a prefill."""
        for part in (*self.keys.values(), *self.values.values()):
            part[target, :, :length] = part[source, :, :length]
        if self.features is not None:
            self.features[target, :length] = self.features[source, :length]
        self.lengths[target] = length
        if self.states is not None:
            self.states.copy(source, target, length)
        for follower in self.followers:
            follower.copy(source, target, length)

    def keep_features(self, batch: Sequence[Rows], features: Tensor) -> None:
        """Store a batch's features [rows, layers, size], and truncate dependent caches to the start of the batch."""
        assert self.features is not None
        begin = 0
        for rows in batch:
            self.features[rows.slot, rows.start : rows.end] = features[begin : begin + len(rows.ids)]
            begin += len(rows.ids)
            for follower in self.followers:
                follower.cut(rows.slot, rows.start)


def cache_bytes(
    shapes: dict[int, LayerShape],
    slots: int,
    capacity: int,
    dtype: torch.dtype,
    features: Sequence[int] = (),
    states: Mapping[int, StateShape] = NO_STATES,
) -> int:
    """Return the size in bytes of a `KVCache` with these arguments; `capacity` is rounded up as in the cache."""
    capacity += -capacity % CAPACITY_UNIT
    per_position = sum(heads * (key_size + value_size) for heads, key_size, value_size in shapes.values())
    per_position += math.prod(features) if features else 0
    per_slot = per_position * capacity * dtype.itemsize + sum(shape.nbytes(dtype) for shape in states.values())
    return slots * per_slot
