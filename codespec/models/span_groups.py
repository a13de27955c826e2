"""Which rows are attended in one call: the first of spans in neighbouring slots whose texts fill as many key blocks.
What a span has more is attended by itself.

A row does not care in which call it is. Keys of slots that are no neighbours would have to be copied, and a span with
fewer rows than the call is padded. Knows slots, rows and lengths; knows no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.models.cache import CAPACITY_UNIT

CALL = 10  # query rows over a block of keys that take as long as a call, measured on a CPU (25 µs, and 2.8 a row);
PASS = 6  # as another look at a block's keys;
GATHERING = 10  # and as laying rows together and apart again


@dataclass(frozen=True, slots=True)
class Span:
    """The rows begin…end-1 of a flat forward belong to `slot`, at positions start, start+1, …"""

    slot: int
    start: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows the span has."""
        return self.end - self.begin

    @property
    def length(self) -> int:
        """Tokens of the sequence, those rows included."""
        return self.start + self.rows

    def cut(self, rows: int) -> tuple[Span, Span | None]:
        """Its first rows, and those behind them."""
        if rows >= self.rows:
            return self, None
        middle = self.begin + rows
        return Span(self.slot, self.start, self.begin, middle), Span(self.slot, self.start + rows, middle, self.end)


@dataclass(frozen=True, slots=True)
class Group:
    """Spans of neighbouring slots, as if each had as many rows as the longest: its last stands for those it lacks."""

    spans: tuple[Span, ...]
    rows: int
    length: int  # tokens of the longest sequence

    @classmethod
    def of(cls, *spans: Span) -> Group:
        """A group of these."""
        return cls(spans, max(span.rows for span in spans), max(span.length for span in spans))

    def flat(self) -> list[int]:
        """The rows' places in the forward, span by span."""
        rows = range(self.rows)
        return [span.begin + min(row, span.rows - 1) for span in self.spans for row in rows]

    def positions(self) -> Tensor:
        """The rows' places in their texts [spans, rows]."""
        rows = range(self.rows)
        return torch.tensor([[span.start + min(row, span.rows - 1) for row in rows] for span in self.spans])


@dataclass(frozen=True, slots=True)
class Grouping:
    """All rows of a forward. `taken` are each group's; `order` [rows] is where each lies when those lie behind one
    another, None where that is its own place.
    """

    groups: tuple[Group, ...]
    taken: tuple[slice | Tensor, ...]
    order: Tensor | None

    @classmethod
    def of(cls, spans: Sequence[Span], folded: int, *, alone: bool = False, unit: int = 1) -> Grouping:
        """The calls that are cheapest where a row is `folded` query rows, which come by `unit`; or one for each
        span.
        """
        if alone or len(spans) == 1:
            return cls(tuple(Group.of(s) for s in spans), tuple(slice(s.begin, s.end) for s in spans), None)
        groups = [group for run in _runs(spans) for group in _split(run, folded, unit)]
        laid = [row for group in groups for row in group.flat()]
        places = {row: place for place, row in reversed(list(enumerate(laid)))}
        order = torch.tensor([places[row] for row in range(len(places))])
        return cls(tuple(groups), tuple(_take(group) for group in groups), None if laid == sorted(places) else order)


def _runs(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans of neighbouring slots with as many blocks of keys."""
    runs: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.slot):
        last = runs[-1][-1] if runs else None
        if last and span.slot == last.slot + 1 and _blocks(span) == _blocks(last):
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _split(run: Sequence[Span], folded: int, unit: int) -> list[Group]:
    """The rows that are attended together, and the others; all apart where that costs less."""
    blocks = _blocks(run[0])

    def cost(rows: int) -> int:
        behind = [span.rows - rows for span in run if span.rows > rows]
        together = CALL + GATHERING + blocks * len(run) * (PASS + _padded(rows * folded, unit)) if rows else 0
        return together + sum(CALL + blocks * (PASS + _padded(more * folded, unit)) for more in behind)

    rows = min(sorted({0, *(span.rows for span in run)}), key=cost)
    if not rows:
        return [Group.of(span) for span in run]
    cuts = [span.cut(rows) for span in run]
    return [Group.of(*(first for first, _ in cuts)), *(Group.of(rest) for _, rest in cuts if rest)]


def _take(group: Group) -> slice | Tensor:
    first = group.spans[0]
    return slice(first.begin, first.end) if len(group.spans) == 1 else torch.tensor(group.flat())


def _blocks(span: Span) -> int:
    return -(-span.length // CAPACITY_UNIT)


def _padded(rows: int, unit: int) -> int:
    return rows + -rows % unit
