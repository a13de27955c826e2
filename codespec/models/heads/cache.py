"""What a head remembers of each slot of its target: its own keys and values, and how far they go. It follows the
target's cache: the same slots and positions, cut and copied with it. Knows positions; knows no arithmetic.
"""

from __future__ import annotations

import torch

from codespec.models.cache import KVCache
from codespec.models.heads.config import HeadConfig

UNKNOWN = -1


class HeadCache:
    """Keys and values of the head's layers. Of slot s the first `done[s]` positions are computed, from features of the
    same positions and, where `shifted`, from the token behind each: that of the last is `behind[s]`.
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
        """Positions of a slot."""
        return self.kept.capacity

    def cut(self, slot: int, length: int) -> None:
        """From position `length` on the target holds something else; the token there too."""
        if length < self.done[slot]:
            self.done[slot] = max(0, length - self.shifted)
            self.behind[slot] = UNKNOWN

    def copy(self, source: int, target: int, length: int) -> None:
        """The target's first `length` positions of one slot are in another one too."""
        done = self.done[source]
        self.done[target], self.behind[target] = done, self.behind[source]
        self.cut(target, length)
        self.kept.fork(source, target, self.done[target])

    def begin(self, slot: int, ids: list[int], length: int) -> int:
        """The first position that has to be computed for a text of these ids, of which the target has read `length`;
        at least the last one.
        """
        done = min(self.done[slot], length)
        if self.shifted and done and done == self.done[slot] and self.behind[slot] not in (UNKNOWN, ids[done]):
            done -= 1
        return max(0, min(done, length - 1))

    def advance(self, slot: int, ids: list[int], done: int) -> None:
        """The first `done` positions are computed now."""
        self.done[slot] = done
        self.behind[slot] = ids[done] if self.shifted else UNKNOWN
