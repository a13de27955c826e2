"""Store a head's own keys and values for each slot of its target.

The cache has the target cache's slots and positions, and is cut and copied together with it.
"""

from __future__ import annotations

import torch

from codespec.models.cache import KVCache
from codespec.models.heads.config import HeadConfig

UNKNOWN = -1


class HeadCache:
    """Keys and values of the head's layers.

    The first `done[s]` positions of slot s are computed from the target's features at the same positions and, if
    `shifted`, from the token after each. `behind[s]` is the token after the last one.
    """

    def __init__(
        self, config: HeadConfig, slots: int, capacity: int, dtype: torch.dtype, device: torch.device, shifted: bool
    ) -> None:
        shapes = dict.fromkeys(range(config.draft_layers), (config.kv_heads, config.head_size, config.head_size))
        self.kept = KVCache(shapes, slots, capacity, dtype, device)
        self.shifted = shifted
        self.done = [0] * slots
        self.behind = [UNKNOWN] * slots

    @property
    def capacity(self) -> int:
        """Positions per slot."""
        return self.kept.capacity

    def cut(self, slot: int, length: int) -> None:
        """Invalidate positions that depend on the target's positions or tokens from `length` on."""
        if length < self.done[slot]:
            self.done[slot] = max(0, length - self.shifted)
            self.behind[slot] = UNKNOWN

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the state of slot `source` to slot `target`, for the target's first `length` positions."""
        done = self.done[source]
        self.done[target], self.behind[target] = done, self.behind[source]
        self.cut(target, length)
        self.kept.fork(source, target, self.done[target])

    def begin(self, slot: int, ids: list[int], length: int) -> int:
        """Return the first position to compute for a text of these ids whose first `length` the target has read.

        At least the last position is always computed.
        """
        done = min(self.done[slot], length)
        if self.shifted and done and done == self.done[slot] and self.behind[slot] not in (UNKNOWN, ids[done]):
            done -= 1
        return max(0, min(done, length - 1))

    def advance(self, slot: int, ids: list[int], done: int) -> None:
        """Record that the first `done` positions are computed."""
        self.done[slot] = done
        self.behind[slot] = ids[done] if self.shifted else UNKNOWN
