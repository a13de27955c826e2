"""Which cache slots are free, and what a free one still holds. Knows ids; knows no tensors.

A released slot keeps its keys and values until someone else needs it, so a prompt that begins like an earlier one (the
next keystroke of the same document) prefills only what is new. The least recently used slot goes first.
"""

from __future__ import annotations

from collections.abc import Sequence


class SlotPool:
    """`count` slots; each remembers the ids whose keys and values it holds, and under which rotary key."""

    def __init__(self, count: int) -> None:
        self._held: dict[int, tuple[list[int], int]] = {slot: ([], 0) for slot in range(count)}  # free, oldest first

    @property
    def num_free(self) -> int:
        """Slots that can be acquired now."""
        return len(self._held)

    def acquire(self, ids: Sequence[int], rotary_key: int = 0, reuse: bool = True) -> tuple[int, int]:
        """Takes the free slot that shares the longest prefix with `ids`; returns (slot, shared ids)."""
        assert self._held, "no slot is free"
        best, length = next(iter(self._held)), 0
        if reuse:
            for slot, (held, key) in self._held.items():
                shared = common_prefix(held, ids) if key == rotary_key else 0
                if shared > length:
                    best, length = slot, shared
        del self._held[best]
        return best, length

    def release(self, slot: int, ids: Sequence[int], rotary_key: int = 0) -> None:
        """Gives a slot back; `ids` are those whose keys and values stay in it."""
        assert slot not in self._held
        self._held[slot] = (list(ids), rotary_key)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids are equal."""
    length = min(len(first), len(second))
    if list(first[:length]) == list(second[:length]):
        return length
    return next(i for i in range(length) if first[i] != second[i])
