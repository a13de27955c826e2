"""The reference of slot attention equals the naive loop, and a row's bits do not depend on other rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from codespec.backends.torch.attention import KEY_BLOCK, slot_attention, stretches
from codespec.backends.torch.attention import reference_slot_attention as reference
from tests.backends.cuda.attention_cases import TOLERANCE, Case, Shape, Stretch, draw_case, error, lay_out, naive, part

SIZES = st.sampled_from([(64, 64), (80, 80), (96, 64), (128, 128), (192, 128), (256, 256), (32, 48)])
SOME_STRETCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=3)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    size, value_size = draw(SIZES)
    return Shape(
        groups=draw(st.sampled_from([1, 2, 4, 7, 8, 20])),
        kv_heads=draw(st.integers(1, 2)),
        size=size,
        value_size=value_size,
        window=draw(st.sampled_from([0, 0, 1, 5, 16])),
        softcap=draw(st.sampled_from([None, None, 2.0])),
        sinks=draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )


@st.composite
def cases(draw: st.DrawFn, capacity: int = 61) -> Case:
    rows = [Stretch(i, first, count) for i, (first, count) in enumerate(draw(SOME_STRETCHES))]
    padding = draw(st.integers(0, 3))
    return draw_case(draw(shapes()), rows, capacity, padding, seed=draw(st.integers(0, 99)))


@given(cases())
def test_equals_the_plain_loop(case: Case) -> None:
    got = slot_attention(*case.arguments)
    assert got.dtype == case.query.dtype
    assert error(got, naive(case)) <= TOLERANCE[case.shape.dtype]
    padding = sum(stretch.count for stretch in case.stretches)
    assert not got[padding:].any(), "padding rows come out as zeros"


@given(cases(), st.data())
def test_a_row_does_not_depend_on_its_neighbours(case: Case, data: st.DataObject) -> None:
    """Measured on CPUs, as in models.attention: one row, a chunk or the whole batch give the same bits."""
    index = data.draw(st.integers(0, len(case.stretches) - 1))
    begin = data.draw(st.integers(0, case.stretches[index].count - 1))
    count = data.draw(st.integers(1, case.stretches[index].count - begin))
    flat = sum(stretch.count for stretch in case.stretches[:index]) + begin
    alone = reference(*part(case, index, begin, count, padding=data.draw(st.integers(0, 2))).arguments)
    assert torch.equal(alone[:count], reference(*case.arguments)[flat : flat + count])


def test_what_follows_a_row_does_not_change_it() -> None:
    """More than one block of keys: those after a row's position have no weight."""
    case = draw_case(Shape(groups=2, kv_heads=1), [Stretch(0, KEY_BLOCK - 8, 40)], 2 * KEY_BLOCK)
    whole = reference(*case.arguments)
    for begin, count in ((0, 1), (0, 8), (7, 2), (8, 32), (39, 1)):
        assert torch.equal(reference(*part(case, 0, begin, count).arguments)[:count], whole[begin : begin + count])
    assert error(whole, naive(case)) <= TOLERANCE[torch.float32]


@given(SOME_STRETCHES, st.integers(1, 16), st.integers(0, 3))
def test_tiles_join_to_the_stretches_they_came_from(drawn: list[tuple[int, int]], size: int, padding: int) -> None:
    rows = [Stretch(i, first, count) for i, (first, count) in enumerate(drawn)]
    joined = list(stretches(lay_out(rows, size, padding, 9, 64).tiles))
    assert [(slot, first, count) for slot, first, _, count in joined] == [(s.slot, s.first, s.count) for s in rows]


def test_only_padding() -> None:
    case = draw_case(Shape(), [Stretch(0, 0, 1)], 16)
    case.rows = lay_out([], 8, 4, 1, 16)
    case.query = case.query.expand(4, -1, -1)
    assert not slot_attention(*case.arguments).any()
