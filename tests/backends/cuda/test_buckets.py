"""Buckets and their rows: the smallest bucket that fits, every row once, and padding without effect."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from codespec.backends.language_model import Rows
from codespec.backends.torch.cache import CAPACITY_UNIT
from codespec.backends.torch.cuda.graphs import ROWS, Bucket, Buckets, reaches
from codespec.backends.torch.cuda.launch import RowBuffer, max_tiles, tile_positions, tiles_of

CAPACITIES = st.integers(1, 40).map(lambda units: units * CAPACITY_UNIT)
SLOTS = 5


@st.composite
def batches(draw: st.DrawFn) -> list[Rows]:
    """Rows of some slots in any order, each keeping some of its last."""
    slots = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True))
    found = []
    for slot in slots:
        ids = draw(st.lists(st.integers(0, 500), min_size=1, max_size=40))
        found.append(Rows(slot, draw(st.integers(0, 300)), ids, keep=draw(st.integers(0, len(ids)))))
    return found


@given(st.integers(0, 600), CAPACITIES, st.data())
def test_the_smallest_bucket_that_fits(most: int, capacity: int, data: st.DataObject) -> None:
    buckets = Buckets(most, capacity)
    rows, keys = data.draw(st.integers(1, 700)), data.draw(st.integers(1, capacity))
    fitting = [b for b in buckets.largest_first() if b.rows >= rows and b.reach >= keys]
    smallest = min(fitting, key=lambda b: (b.rows, b.reach), default=None)
    assert buckets.fit(rows, keys) == smallest
    assert (smallest is None) == (not buckets.rows or rows > buckets.rows[-1])
    assert buckets.reach(keys) == min(reach for reach in reaches(capacity) if reach >= keys)


@given(CAPACITIES)
def test_reaches_end_with_the_capacity_and_no_step_more_than_doubles(capacity: int) -> None:
    found = reaches(capacity)
    assert found[-1] == capacity and list(found) == sorted(set(found))
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(found))


def test_buckets_come_largest_first_and_padding_is_bounded() -> None:
    ordered = Buckets(max(ROWS), 2048).largest_first()
    assert ordered[0] == Bucket(max(ROWS), 2048) and ordered[-1] == Bucket(1, 512)
    assert len(ordered) == len(set(ordered)) == 3 * len(ROWS)
    assert all(high <= 1.5 * (low + 1) for low, high in itertools.pairwise(ROWS))
    assert Buckets(0, 2048).fit(1, 1) is None


@given(batches(), st.integers(1, 64))
def test_tiles_cover_every_row_once(batch: list[Rows], groups: int) -> None:
    size = tile_positions(groups)
    tiles = list(tiles_of(batch, size))
    flat = [(rows.slot, rows.start + i) for rows in batch for i in range(len(rows.ids))]
    covered = [(slot, first + i) for slot, first, _, count in tiles for i in range(count)]
    begins = [begin for _, _, begin, _ in tiles]
    assert covered == flat
    assert begins == [sum(count for *_, count in tiles[:i]) for i in range(len(tiles))]
    assert all(0 < count <= size for *_, count in tiles)
    assert len(tiles) <= max_tiles(len(flat), len(batch), size) <= len(flat)


@given(st.lists(batches(), min_size=1, max_size=3), st.integers(0, 30), st.integers(1, 16))
def test_a_buffer_holds_the_last_batch_and_padding(played: list[list[Rows]], spare: int, size: int) -> None:
    """Filled repeatedly, like a graph's memory: nothing of an earlier step remains."""
    count = max(sum(len(rows.ids) for rows in batch) for batch in played) + spare
    buffer = RowBuffer(count, max_tiles(count, SLOTS, size), 512, SLOTS, torch.device("cpu"))
    places = [t.data_ptr() for t in (buffer.rows.ids, buffer.rows.positions, buffer.rows.slots, buffer.rows.tiles)]
    for batch in played:
        buffer.fill(batch, size)
    rows, batch = buffer.rows, played[-1]
    assert places == [t.data_ptr() for t in (rows.ids, rows.positions, rows.slots, rows.tiles)]
    pad = count - sum(len(part.ids) for part in batch)
    assert rows.ids.tolist() == [token for part in batch for token in part.ids] + [0] * pad
    assert rows.positions.tolist() == [part.start + i for part in batch for i in range(len(part.ids))] + [0] * pad
    assert rows.slots.tolist() == [part.slot for part in batch for _ in part.ids] + [SLOTS] * pad
    used = [list(tile) for tile in tiles_of(batch, size)]
    assert rows.tiles.tolist() == used + [[0] * 4] * (len(rows.tiles) - len(used))
    assert kept_by_hand(batch) == buffer.kept.tolist()[: sum(part.keep for part in batch)]
    assert not buffer.kept[sum(part.keep for part in batch) :].any()


def kept_by_hand(batch: list[Rows]) -> list[int]:
    """Number all rows, then take the last few of each sequence."""
    numbers = iter(range(10**6))
    found = []
    for part in batch:
        own = [next(numbers) for _ in part.ids]
        found += own[len(own) - part.keep :]
    return found
