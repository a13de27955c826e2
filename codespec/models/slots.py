"""Prefix caching: which cache slots are free, what a free one still holds, and which is evicted next. Knows ids and
their owners; knows no tensors.

A released slot keeps its keys and values, so a prompt that begins like an earlier one of the same scope (the next
keystroke of the same document) computes only what is new. A slot of another scope may be evicted, but its content is
never used. There may be more slots than requests at once; then documents that nobody types in right now stay warm. A
document that is closed needs no call: its slot becomes the least recently used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec.types import Owner

if TYPE_CHECKING:
    from codespec.models.cache import KVCache


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that was taken. The keys and values of the first `shared` ids are in `source`: the slot itself, or a free
    one to copy them from before any other slot is taken.
    """

    slot: int
    source: int
    shared: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a free slot holds: ids, their rotary key and their owner."""

    ids: list[int]
    rotary_key: int = 0
    owner: Owner = NOBODY


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How full a cache is: its slots, how many are taken, and what the others keep warm in tokens and in bytes, out of
    `most_bytes` for all.
    """

    slots: int
    taken: int
    tokens: int
    nbytes: int
    most_bytes: int

    @classmethod
    def of(cls, pool: SlotPool, cache: KVCache | None) -> CacheUse:
        """The use of a pool and its cache."""
        assert cache is not None
        held = cache.nbytes * pool.num_tokens // (cache.slots * cache.capacity)
        return cls(pool.count, pool.num_taken, pool.num_tokens, held, cache.nbytes)


class SlotPool:
    """`count` slots. A taken slot stays taken until it is released; free ones are evicted in the order of `_victim`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.num_tokens = 0  # ids whose keys and values free slots hold
        self._free: dict[int, Held] = {slot: Held([]) for slot in range(count)}  # least recently used first
        self._taken: dict[int, Owner] = {}
        self._newest: dict[Owner, int] = {}  # of each document the slot that it was last given

    @property
    def num_taken(self) -> int:
        """How many slots are taken."""
        return len(self._taken)

    def holds(self, owner: Owner) -> bool:
        """Whether a free slot holds something of a document."""
        return self._newest.get(owner) in self._free

    def acquire(self, ids: Sequence[int], rotary_key: int = 0, owner: Owner = NOBODY) -> Lease:
        """Takes a free slot for a prompt.

        This is the slot with the longest common prefix, if it is of the same document and loses no more than half of
        what it holds; else a victim, to which the prefix is to be copied.
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
        """Gives a slot back; it keeps the keys and values of `ids`."""
        assert slot in self._taken, "a slot that is not taken"
        self._free[slot] = Held(list(ids), rotary_key, self._taken.pop(slot))
        self.num_tokens += len(ids)

    def _longest(self, ids: Sequence[int], rotary_key: int, owner: Owner) -> tuple[int, int]:
        """The free slot with the longest prefix of `ids`; of several the same document's, then the shortest."""

        def rank(slot: int) -> tuple[int, bool, int]:
            held = self._free[slot]
            alike = held.rotary_key == rotary_key and held.owner.scope == owner.scope
            shared = common_prefix(held.ids, ids) if alike else 0
            return shared, held.owner == owner, -len(held.ids)

        best = max(self._free, key=rank)
        return best, rank(best)[0]

    def _victim(self, owner: Owner) -> int:
        """An empty slot; else one whose document has or gets a newer one; else the least recently used."""

        def value(slot: int) -> int:
            held = self._free[slot]
            if not held.ids:
                return 0
            newest = self._newest.get(held.owner, slot)  # the newest may be gone already, if it was empty
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
    """How many leading ids are equal."""
    same, length = 0, min(len(first), len(second))
    while same < length:  # by bisection, so that lists are compared in C
        middle = (same + length + 1) // 2
        if list(first[same:middle]) == list(second[same:middle]):
            same = middle
        else:
            length = middle - 1
    return same
