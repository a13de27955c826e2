"""Slots: never handed out twice, longest shared beginning first, then the one unused for longest; forks are copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from codespec.errors import ModelError
from codespec.models.cache import CAPACITY_UNIT, KVCache, cache_bytes
from codespec.models.language_model import Rows
from codespec.models.slots import SlotPool, common_prefix
from tests.models.rounds import fresh_prefill
from tests.tiny_models import sample_ids, tiny_model

IDS = st.lists(st.integers(0, 2), max_size=6)
KEYS = st.integers(0, 1)


class PoolMachine(RuleBasedStateMachine):
    """A pool against a list of free slots in the order of their release."""

    @initialize(count=st.integers(1, 5))
    def start(self, count: int) -> None:
        self.pool = SlotPool(count)
        self.free: list[tuple[int, list[int], int]] = [(slot, [], 0) for slot in range(count)]
        self.taken: set[int] = set()

    @precondition(lambda self: self.free)
    @rule(ids=IDS, key=KEYS, reuse=st.booleans())
    def acquire(self, ids: list[int], key: int, reuse: bool) -> None:
        shared = [naive_prefix(held, ids) if reuse and key == rotary else 0 for _, held, rotary in self.free]
        expected = self.free[shared.index(max(shared))]
        assert self.pool.acquire(ids, key, reuse) == (expected[0], max(shared))
        assert expected[0] not in self.taken
        self.taken.add(expected[0])
        self.free.remove(expected)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), ids=IDS, key=KEYS)
    def release(self, data: st.DataObject, ids: list[int], key: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.taken)))
        self.pool.release(slot, ids, key)
        self.taken.remove(slot)
        self.free.append((slot, list(ids), key))
        ids.append(99)  # the pool must keep its own copy

    @rule()
    def count(self) -> None:
        assert self.pool.num_free == len(self.free)


def naive_prefix(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(IDS, IDS)
def test_common_prefix(first: list[int], second: list[int]) -> None:
    assert common_prefix(first, tuple(second)) == naive_prefix(first, second)


def test_misuse_is_noticed() -> None:
    pool = SlotPool(1)
    slot, _ = pool.acquire([1])
    with pytest.raises(AssertionError):
        pool.acquire([1])
    pool.release(slot, [1])
    with pytest.raises(AssertionError):
        pool.release(slot, [1])


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
    """Whatever its slot held, and without touching the source."""
    model = tiny_model("qwen2", dtype=dtype)
    ids, other = sample_ids(60), sample_ids(60, 1)
    logits, held = fresh_prefill(model, ids)
    model.allocate(2, 64)
    assert model.cache is not None
    model.forward([Rows(0, 0, ids[:50])])
    if before:
        model.forward([Rows(1, 0, other[:before])])
    model.cache.fork(0, 1, length)
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
