"""The slot pool: no slot is assigned twice, and the longest shared prefix is continued or copied.

A slot is never taken from a sequence of higher value. Forks are copies.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from codespec.api.types import Owner
from codespec.backends.language_model import NO_OWNER, Lease, Rows, SlotPool, common_prefix
from codespec.backends.torch.cache import CAPACITY_UNIT, KVCache, cache_bytes
from codespec.errors import ModelError
from tests.backends.rounds import fresh_prefill
from tests.tiny_models import sample_ids, tiny_model

IDS = st.lists(st.integers(0, 2), max_size=6)
KEYS = st.integers(0, 1)
OWNERS = st.builds(Owner, st.sampled_from(["", "x"]), st.sampled_from(["", "a", "b"]))


class PoolMachine(RuleBasedStateMachine):
    """Compares a pool with a list of free slots in order of release, and each document's newest slot."""

    @initialize(count=st.integers(1, 5))
    def start(self, count: int) -> None:
        self.pool = SlotPool(count)
        self.free: list[tuple[int, list[int], int, Owner]] = [(slot, [], 0, NO_OWNER) for slot in range(count)]
        self.taken: dict[int, Owner] = {}
        self.newest: dict[Owner, int] = {}

    def worth(self, slot: int, ids: list[int], owner: Owner, comes: Owner) -> int:
        """Return the value lost with a slot: nothing, an older position of a document, or a continuable prefix."""
        if not ids:
            return 0
        return 1 if owner.document and (owner == comes or self.newest.get(owner, slot) != slot) else 2

    @precondition(lambda self: self.free)
    @rule(ids=IDS, key=KEYS, comes=OWNERS)
    def acquire(self, ids: list[int], key: int, comes: Owner) -> None:
        lease = self.pool.acquire(ids, key, comes)
        assert lease.slot not in self.taken
        free = {slot: (held, rotary, owner) for slot, held, rotary, owner in self.free}
        alike = {slot: rotary == key and owner.scope == comes.scope for slot, (_, rotary, owner) in free.items()}
        shared = {slot: naive_prefix(held, ids) if alike[slot] else 0 for slot, (held, _, _) in free.items()}
        assert lease.shared == max(shared.values()) == shared.get(lease.source, 0)
        held, _, owner = free[lease.slot]
        worths = {slot: self.worth(slot, held, owner, comes) for slot, (held, _, owner) in free.items()}
        goes_on = lease.source == lease.slot and owner == comes and 2 * shared[lease.slot] >= len(held)
        oldest = next(slot for slot in free if worths[slot] == min(worths.values()))
        assert goes_on or lease.slot == oldest
        own = [slot for slot, (_, _, owner) in free.items() if owner == comes and shared[slot] == lease.shared > 0]
        if any(2 * lease.shared >= len(free[slot][0]) for slot in own):
            assert goes_on, "a document keeps its slot"
        self.free = [entry for entry in self.free if entry[0] != lease.slot]
        self.newest = {name: slot for name, slot in self.newest.items() if slot != lease.slot}
        self.taken[lease.slot] = comes
        if comes.document:
            self.newest[comes] = lease.slot

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), ids=IDS, key=KEYS)
    def release(self, data: st.DataObject, ids: list[int], key: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        self.pool.release(slot, ids, key)
        self.free.append((slot, list(ids), key, self.taken.pop(slot)))
        ids.append(99)  # the pool must keep its own copy

    @rule()
    def count(self) -> None:
        assert self.pool.num_taken == len(self.taken) == self.pool.count - len(self.free)
        assert self.pool.num_tokens == sum(len(ids) for _, ids, _, _ in self.free)


def naive_prefix(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=30)


@given(IDS, IDS)
def test_common_prefix(first: list[int], second: list[int]) -> None:
    assert common_prefix(first, tuple(second)) == naive_prefix(first, second)


def test_misuse_is_noticed() -> None:
    pool = SlotPool(1)
    slot = pool.acquire([1]).slot
    with pytest.raises(AssertionError):
        pool.acquire([1])
    pool.release(slot, [1])
    with pytest.raises(AssertionError):
        pool.release(slot, [1])


def used(pool: SlotPool, ids: list[int], document: str = "", scope: str = "") -> Lease:
    """Take a slot and return it with everything computed."""
    lease = pool.acquire(ids, 0, Owner(scope, document))
    pool.release(lease.slot, ids)
    return lease


def test_a_shared_header_takes_nobodys_slot() -> None:
    """Every prompt begins with the same markers; these are copied, and the other document's slot stays."""
    pool, header = SlotPool(3), list(range(20))
    first = used(pool, header + [1] * 60, "a")
    second = used(pool, header + [2] * 60, "b")
    assert second.slot != first.slot and (second.source, second.shared) == (first.slot, 20)
    assert used(pool, header + [1] * 62, "a") == Lease(first.slot, first.slot, 80)


def test_a_document_keeps_its_slot_while_another_one_jumps_about() -> None:
    pool = SlotPool(3)
    kept = used(pool, [1] * 50, "a")
    for place in range(2, 9):
        used(pool, [place] * 50, "b")
    assert used(pool, [1] * 51, "a") == Lease(kept.slot, kept.slot, 50)
    assert used(pool, [8] * 51, "b").shared == 50


def test_the_document_that_rests_for_longest_goes_first() -> None:
    pool = SlotPool(3)
    slots = {name: used(pool, [number] * 9, name).slot for number, name in enumerate("abc")}
    used(pool, [0] * 10, "a")
    assert used(pool, [9] * 9, "d").slot == slots["b"]


def test_what_a_scope_holds_is_not_shared_with_another() -> None:
    """Not even for a document of the same name; without other room, the slot is evicted."""
    pool = SlotPool(2)
    first = used(pool, [1] * 50, "a", "mine")
    other = used(pool, [1] * 50, "a", "theirs")
    assert other == Lease(other.slot, other.slot, 0) and other.slot != first.slot
    assert used(pool, [1] * 51, "a", "mine") == Lease(first.slot, first.slot, 50)
    assert used(pool, [1] * 50, "a", "third") == Lease(other.slot, other.slot, 0)


def test_who_jumps_away_and_back_finds_the_old_place() -> None:
    pool = SlotPool(3)
    first = used(pool, [1] * 50, "a")
    used(pool, [2] * 50, "a")
    assert used(pool, [1] * 51, "a") == Lease(first.slot, first.slot, 50)


def test_capacity_is_whole_blocks_and_bytes_are_counted() -> None:
    shapes = {0: (2, 8, 8), 1: (1, 16, 4)}
    cache = KVCache(shapes, 3, CAPACITY_UNIT + 1, torch.bfloat16, torch.device("cpu"))
    assert cache.capacity == 2 * CAPACITY_UNIT
    assert cache.keys[1].shape == (3, 1, cache.capacity, 16) and cache.values[1].shape == (3, 1, cache.capacity, 4)
    assert cache.nbytes == cache_bytes(shapes, 3, cache.capacity, torch.bfloat16) == 3 * cache.capacity * 52 * 2


def test_a_cache_that_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(ModelError, match=r"MiB for 2 cache slots .* do not fit in memory: lower max_batch or context"):
        KVCache({0: (64, 2**14, 2**14)}, 2, 2**40, torch.float32, torch.device("cpu"))


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_fork_goes_on_like_its_source(length: int, before: int, dtype: torch.dtype) -> None:
    """Whatever its slot held before, and without changing the source."""
    model = tiny_model("qwen2", dtype=dtype)
    ids, other = sample_ids(60), sample_ids(60, 1)
    logits, held = fresh_prefill(model, ids)
    model.allocate(2, 64)
    assert model.cache is not None
    model.forward([Rows(0, 0, ids[:50])])
    if before:
        model.forward([Rows(1, 0, other[:before])])
    model.fork(0, 1, length)
    assert model.cache.lengths == [50, length]
    assert torch.equal(model.forward([Rows(1, length, ids[length:], keep=60 - length)]), logits[length:])
    model.forward([Rows(1, length, other[length:])])
    for layer, pair in held.items():
        for mine, fresh in zip(model.cache.read(layer, 0, 50), pair, strict=True):
            assert torch.equal(mine, fresh[:, :50])


def test_reading_copies_nothing() -> None:
    cache = KVCache({0: (2, 8, 8)}, 2, 10, torch.float32, torch.device("cpu"))
    keys, values = cache.read(0, 1, 10)
    assert keys.untyped_storage().data_ptr() == cache.keys[0].untyped_storage().data_ptr()
    assert values.untyped_storage().data_ptr() == cache.values[0].untyped_storage().data_ptr()
