"""The attention kernels equal the naive loop, and a row's bits do not depend on other rows, chunks or the bound."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.backends.torch.cuda import attention_kernels
from codespec.backends.torch.cuda.attention_kernels import Walk, attend_tiles, max_splits
from tests.backends.cuda.attention_cases import TOLERANCE, Case, Shape, Stretch, draw_case, error, naive, part
from tests.backends.cuda.test_slot_attention import shapes

EXAMPLES = int(os.environ.get("CODESPEC_EXAMPLES", "6"))
SPLIT, CAPACITY = 32, 90


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    """Shrink the blocks, so that a short cache has several splits, groups of splits and blocks of keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_kernels, "SPLIT", SPLIT)
        patch.setattr(attention_kernels, "JOINED", 2)
        patch.setattr(attention_kernels, "walk_of", lambda size, dtype: Walk(keys=16, warps=1, stages=1))
        yield


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few rows, at positions late enough for several splits."""
    firsts = draw(st.lists(st.integers(0, 80), min_size=1, max_size=2))
    rows = [Stretch(slot, first, draw(st.integers(1, 4))) for slot, first in enumerate(firsts)]
    return draw_case(draw(shapes()), rows, CAPACITY, draw(st.integers(0, 2)), seed=draw(st.integers(0, 99)))


@settings(max_examples=EXAMPLES)
@given(cases())
def test_equals_the_plain_loop(case: Case) -> None:
    got = attend_tiles(*case.arguments)
    assert got.dtype == case.query.dtype
    assert error(got, naive(case)) <= TOLERANCE[case.shape.dtype]
    assert not got[sum(stretch.count for stretch in case.stretches) :].any(), "padding rows come out as zeros"


@settings(max_examples=EXAMPLES)
@given(cases(), st.data())
def test_a_row_does_not_depend_on_its_company(case: Case, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(case.stretches) - 1))
    begin = data.draw(st.integers(0, case.stretches[index].count - 1))
    count = data.draw(st.integers(1, case.stretches[index].count - begin))
    flat = sum(stretch.count for stretch in case.stretches[:index]) + begin
    reach = data.draw(st.sampled_from([case.stretches[index].first + begin + count, CAPACITY, 150]))
    alone = attend_tiles(*part(case, index, begin, count, reach, data.draw(st.integers(0, 2))).arguments)
    assert torch.equal(alone[:count], attend_tiles(*case.arguments)[flat : flat + count])


@pytest.mark.parametrize("window", [0, 40])
def test_prefill_in_chunks(window: int) -> None:
    """Nine rows at once and in chunks: a tile ends at the end of a chunk."""
    case = draw_case(Shape(groups=4, kv_heads=1, window=window), [Stretch(0, 60, 9)], CAPACITY)
    whole = attend_tiles(*case.arguments)
    for begin, count in ((0, 1), (1, 3), (4, 5)):
        assert torch.equal(attend_tiles(*part(case, 0, begin, count).arguments), whole[begin : begin + count])


def test_what_is_not_seen_is_not_read() -> None:
    """NaN after the last row, before the window, in scratch and in other slots does not reach the output."""
    case = draw_case(Shape(window=20, groups=2, kv_heads=1), [Stretch(1, 60, 3)], CAPACITY, padding=1)
    wanted = attend_tiles(*case.arguments)
    seen = slice(60 - 19, 63)
    for cached in (case.keys, case.values):
        kept = cached[1, :, seen].clone()
        cached.fill_(torch.nan)
        cached[1, :, seen] = kept
    got = attend_tiles(*case.arguments)
    # Keys of the window's first block are read and masked, so their values must be finite, as in a zeroed cache.
    case.values[1, :, : seen.start] = 0.0
    assert torch.equal(attend_tiles(*case.arguments), wanted), got


def test_splits_are_bounded_by_the_window() -> None:
    assert max_splits(10 * SPLIT, 0, 2) == 10
    assert max_splits(10 * SPLIT, 1, 16) == 1
    assert max_splits(10 * SPLIT, 2, 16) == 2
    assert max_splits(10 * SPLIT, SPLIT + 2, 16) == 3
    assert max_splits(SPLIT, 3 * SPLIT, 16) == 1
