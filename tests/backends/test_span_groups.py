"""Groups of rows attended in one call: every row once, at its own position, and no more calls than pay."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.backends.rows import Rows
from codespec.backends.torch.cache import CAPACITY_UNIT
from codespec.backends.torch.grouping import Grouping, Span
from tests.tiny_models import sample_ids, tiny_model

SLOTS = 6
TEXTS = st.dictionaries(
    st.integers(0, SLOTS - 1), st.tuples(st.integers(0, 2 * CAPACITY_UNIT), st.integers(1, 20)), min_size=1
)


def laid_out(texts: dict[int, tuple[int, int]], order: list[int]) -> list[Span]:
    """Return the spans of a forward: slot -> (start, rows)."""
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
        whole = {-(-sum(texts[span.slot]) // CAPACITY_UNIT) for span in group.spans}
        assert len(whole) == 1, "no short text reads a long one's blocks"
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
    assert len(Grouping.of(laid_out(texts, list(texts)), 2, unit=4).groups) == calls


def test_slots_that_are_no_neighbours_are_attended_apart() -> None:
    texts = {slot: (300, 1) for slot in (0, 1, 2, 3, 5, 6, 7, 8, 9)}
    assert [len(group.spans) for group in Grouping.of(laid_out(texts, list(texts)), 2).groups] == [4, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_together_says_bit_for_bit_what_apart_does(
    architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six texts around and after the end of the first block of keys, with equal and different row counts."""
    plays = [[1] * SLOTS, [1] * SLOTS, [4] * SLOTS, [1, 1, 7, 1, 2, 1], [9, 1, 1, 1, 1, 3], [5, 5, 2, 5, 5, 5]]
    group, sizes = Grouping.of, set[int]()

    def told(*spans: Any, **how: Any) -> Grouping:
        made = group(*spans, **how)
        sizes.update(len(part.spans) for part in made.groups)
        return made

    def play(grouping: Callable[..., Grouping]) -> list[torch.Tensor]:
        monkeypatch.setattr(Grouping, "of", grouping)
        model = tiny_model(architecture, dtype=dtype)
        model.allocate(SLOTS, 700)
        lengths = [500, 505, 509, 511, 530, 600]
        for slot, length in enumerate(lengths):
            model.admit(slot, 700)
            model.forward([Rows(slot, 0, sample_ids(length, seed=slot), keep=0)])
        message = []
        for number, counts in enumerate(plays):
            new = [sample_ids(count, seed=number) for count in counts]
            message.append(model.forward([Rows(s, lengths[s], ids, keep=len(ids)) for s, ids in enumerate(new)]))
            lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        return message

    apart = play(lambda spans, folded, **how: group(spans, folded, alone=True))
    together = play(told)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(together, apart, strict=True))
    assert max(sizes) >= 4, "several are attended in one call"
