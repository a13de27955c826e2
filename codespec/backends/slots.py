"""Prefix caching: which cache slots are free, what they still hold, and which one to evict next.

A released slot keeps its keys and values, so a prompt that shares a prefix with an earlier one of the same scope (the
next keystroke in the same document) computes only the new part. A slot of another scope may be evicted, but its content
is never reused. With more slots than concurrent requests, idle documents stay warm. Closing a document needs no call:
its slot becomes the least recently used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec.api.types import Owner

if TYPE_CHECKING:
    from codespec.backends.language_model import Cache


NO_OWNER = Owner()


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that was acquired.

    The keys and values of the first `shared` ids are in `source`: the slot itself, or a free slot to copy them from
    before any other slot is acquired.
    """

    slot: int
    source: int
    shared: int


@dataclass(frozen=True, slots=True)
class Held:
    """The content of a free slot: ids, their rotary key and their owner."""

    ids: list[int]
    rotary_key: int = 0
    owner: Owner = NO_OWNER


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Usage of a cache: its slots, and how many are taken.

    `tokens` and `nbytes` are the content that free slots keep warm, out of `max_bytes` in total.
    """

    slots: int
    taken: int
    tokens: int
    nbytes: int
    max_bytes: int

    @classmethod
    def of(cls, pool: SlotPool, cache: Cache | None) -> CacheUse:
        """Return the usage of a pool and its cache."""
        assert cache is not None
        held = cache.nbytes * pool.num_tokens // (cache.slots * cache.capacity)
        return cls(pool.count, pool.num_taken, pool.num_tokens, held, cache.nbytes)


class SlotPool:
    """A pool of `count` slots. A taken slot stays taken until released; `_victim` chooses which free one to evict."""

    def __init__(self, count: int, resumable: Callable[[int, int], int] = lambda slot, length: length) -> None:
        self.count = count
        self._resumable = resumable  # how many of a slot's first positions can be reused
        self.num_tokens = 0  # ids cached in free slots
        self._free: dict[int, Held] = {slot: Held([]) for slot in range(count)}  # least recently used first
        self._taken: dict[int, Owner] = {}
        self._newest: dict[Owner, int] = {}  # each document's most recent slot

    @property
    def num_taken(self) -> int:
        """Number of taken slots."""
        return len(self._taken)

    def holds(self, owner: Owner) -> bool:
        """Return whether a free slot holds content of a document."""
        return self._newest.get(owner) in self._free

    def acquire(self, ids: Sequence[int], rotary_key: int = 0, owner: Owner = NO_OWNER) -> Lease:
        """Take a free slot for a prompt.

        Chooses the slot with the longest common prefix if it belongs to the same document and loses at most half of its
        content; otherwise a victim, to which the prefix is to be copied.
        """
        assert self._free, "no slot is free"
        source, shared = self._longest(ids, rotary_key, owner)
        held = self._free[source]
        slot = source
        if held.owner != owner or 2 * shared < len(held.ids):
            slot = self._victim(owner)
        self._take(slot, owner)
        return Lease(slot, source if shared else slot, shared)

    def release(self, slot: int, ids: Sequence[int], rotary_key: int = 0) -> None:
        """Release a slot; it keeps the keys and values of `ids`."""
        assert slot in self._taken, "the slot is not taken"
        self._free[slot] = Held(list(ids), rotary_key, self._taken.pop(slot))
        self.num_tokens += len(ids)

    def _longest(self, ids: Sequence[int], rotary_key: int, owner: Owner) -> tuple[int, int]:
        """Return the free slot with the longest common prefix with `ids`, and that prefix's length.

        Ties prefer the same document, then the shortest content.
        """

        def rank(slot: int) -> tuple[int, bool, int]:
            held = self._free[slot]
            alike = held.rotary_key == rotary_key and held.owner.scope == owner.scope
            shared = common_prefix(held.ids, ids) if alike else 0
            shared = self._resumable(slot, shared) if shared else 0
            return shared, held.owner == owner, -len(held.ids)

        best = max(self._free, key=rank)
        return best, rank(best)[0]

    def _victim(self, owner: Owner) -> int:
        """Return the slot to evict.

        Prefer an empty slot, then a slot whose document has or gets a newer slot, then the least recently used.
        """

        def value(slot: int) -> int:
            held = self._free[slot]
            if not held.ids:
                return 0
            newest = self._newest.get(held.owner, slot)  # the newest may be missing, if it was empty
            return 1 if held.owner.document and (held.owner == owner or newest != slot) else 2

        return min(self._free, key=value)

    def _take(self, slot: int, owner: Owner) -> None:
        held = self._free.pop(slot)
        self.num_tokens -= len(held.ids)
        if self._newest.get(held.owner) == slot:
            del self._newest[held.owner]
        if owner.document:
            self._newest[owner] = slot
        self._taken[slot] = owner


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of equal leading ids."""
    same, length = 0, min(len(first), len(second))
    while same < length:  # bisect, so that lists are compared in C
        middle = (same + length + 1) // 2
        if list(first[same:middle]) == list(second[same:middle]):
            same = middle
        else:
            length = middle - 1
    return same
