"""Rows that are attended in one call: every row once, at its own place, and no more calls than pay."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.models.cache import CAPACITY_UNIT
from codespec.models.span_groups import Grouping, Span

SLOTS = 6
TEXTS = st.dictionaries(
    st.integers(0, SLOTS - 1), st.tuples(st.integers(0, 2 * CAPACITY_UNIT), st.integers(1, 20)), min_size=1
)


def laid_out(texts: dict[int, tuple[int, int]], order: list[int]) -> list[Span]:
    """Spans of a forward: slot -> (start, rows)."""
    spans: list[Span] = []
    for slot in order:
        start, rows = texts[slot]
        begin = spans[-1].end if spans else 0
        spans.append(Span(slot, start, begin, begin + rows))
    return spans


@given(TEXTS, st.integers(1, 8), st.booleans(), st.randoms())
@settings(deadline=None)
def test_every_row_is_attended_once_and_lies_at_its_place(
    texts: dict[int, tuple[int, int]], folded: int, alone: bool, random: Random
) -> None:
    order = sorted(texts, key=lambda _: random.random())
    spans = laid_out(texts, order)
    rows = torch.arange(spans[-1].end)
    places = {span.begin + i: (span.slot, span.start + i) for span in spans for i in range(span.rows)}
    grouping = Grouping.of(spans, folded, alone=alone)
    told = []
    for group, taken in zip(grouping.groups, grouping.taken, strict=True):
        first = group.spans[0].slot
        assert [span.slot for span in group.spans] == list(range(first, first + len(group.spans)))
        assert len({-(-span.length // CAPACITY_UNIT) for span in group.spans}) == 1, "nobody reads another's blocks"
        slots = [slot for slot in range(first, first + len(group.spans)) for _ in range(group.rows)]
        told += list(zip(rows[taken].tolist(), slots, group.positions().flatten().tolist(), strict=True))
    kept = told if grouping.order is None else [told[place] for place in grouping.order.tolist()]
    assert kept == [(row, *places[row]) for row in range(len(places))]


@pytest.mark.parametrize(
    ("rows", "calls"),
    [([1] * 16, 1), ([1] * 15 + [9], 2), ([3] * 16, 1), ([*[1] * 7, 200], 2), ([2, 3, 5, 10] * 2, 8), ([1], 1)],
)
def test_calls_are_few_where_rows_are_alike(rows: list[int], calls: int) -> None:
    texts = {slot: (300, count) for slot, count in enumerate(rows)}
    assert len(Grouping.of(laid_out(texts, list(texts)), 2).groups) == calls


def test_slots_that_are_no_neighbours_are_attended_apart() -> None:
    texts = {slot: (300, 1) for slot in (0, 1, 2, 3, 5, 6, 7, 8, 9)}
    assert [len(group.spans) for group in Grouping.of(laid_out(texts, list(texts)), 2).groups] == [4, 5]
