"""Which rows are attended in one call: the first rows of spans in neighbouring slots whose texts fill as many key
blocks. The remaining rows of a longer span get a call of their own.

A row's result does not depend on its call. Keys of slots that are no neighbours would have to be copied, and a span
with fewer rows than the call is padded. Knows slots, rows and lengths; knows no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.models.call_shape import KEY_BLOCK

# Costs in query rows over a block of keys, measured on a CPU (a call takes 25 µs, a row 2.8).
CALL = 10  # of a call
PASS = 6  # of reading a block's keys once more
GATHERING = 10  # of gathering rows and scattering them again


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
    """Spans of neighbouring slots, padded to the rows of the longest by repeating each span's last row."""

    spans: tuple[Span, ...]
    rows: int
    length: int  # tokens of the longest sequence

    @classmethod
    def of(cls, *spans: Span) -> Group:
        """A group of these."""
        return cls(spans, max(span.rows for span in spans), max(span.length for span in spans))

    def flat(self) -> list[int]:
        """The rows' flat indices in the forward, span by span."""
        rows = range(self.rows)
        return [span.begin + min(row, span.rows - 1) for span in self.spans for row in rows]

    def positions(self) -> Tensor:
        """The rows' positions in their sequences [spans, rows]."""
        rows = range(self.rows)
        return torch.tensor([[span.start + min(row, span.rows - 1) for row in rows] for span in self.spans])


@dataclass(frozen=True, slots=True)
class Grouping:
    """All rows of a forward. `taken` are each group's flat rows; `order` [rows] is each row's index in the groups' rows
    one after another, None where that is the flat index itself.
    """

    groups: tuple[Group, ...]
    taken: tuple[slice | Tensor, ...]
    order: Tensor | None

    @classmethod
    def of(cls, spans: Sequence[Span], folded: int, *, alone: bool = False, unit: int = 1) -> Grouping:
        """The cheapest calls where a row is `folded` query rows, in multiples of `unit`; or one call for each span
        (`alone`).
        """
        if alone or len(spans) == 1:
            return cls(tuple(Group.of(s) for s in spans), tuple(slice(s.begin, s.end) for s in spans), None)
        groups = [group for run in _runs(spans) for group in _split(run, folded, unit)]
        laid = [row for group in groups for row in group.flat()]
        index = {row: i for i, row in reversed(list(enumerate(laid)))}
        order = torch.tensor([index[row] for row in range(len(index))])
        return cls(tuple(groups), tuple(_take(group) for group in groups), None if laid == sorted(index) else order)


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
    """The rows that are attended together, and the rest; each span alone if that costs less."""
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
    return -(-span.length // KEY_BLOCK)


def _padded(rows: int, unit: int) -> int:
    return rows + -rows % unit
