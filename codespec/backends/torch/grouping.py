"""How the rows of a forward are grouped into attention calls.

One call attends the first rows of spans in adjacent slots whose sequences fill the same number of key blocks; the
remaining rows of a longer span get a call of their own. A row's result does not depend on its call. Keys of slots that
are not adjacent would have to be copied, and a span with fewer rows than the call is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codespec.backends.torch.call_shape import KEY_BLOCK

# Costs in units of one query row over one block of keys, measured on a CPU (a call takes 25 µs, a row 2.8).
CALL = 10  # one call
PASS = 6  # reading a block's keys once more
GATHERING = 10  # gathering rows and scattering the results


@dataclass(frozen=True, slots=True)
class Scoring:
    """Parameters by which a layer turns the scores of a row's keys into weights.

    window   sliding window in tokens; 0: none
    softcap  bound on the scores (Gemma 2)
    sinks    [heads]: each takes a share of every row's weight (gpt-oss)
    """

    scale: float
    window: int = 0
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def eager(self) -> bool:
        """Whether torch has no kernel for this attention."""
        return self.softcap is not None or self.sinks is not None

    def bounded(self, scores: Tensor) -> Tensor:
        """Apply the softcap."""
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


@dataclass(frozen=True, slots=True)
class Span:
    """Rows begin…end-1 of a flat forward, which belong to `slot` at positions start, start+1, …"""

    slot: int
    start: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """Number of rows in the span."""
        return self.end - self.begin

    @property
    def length(self) -> int:
        """Tokens of the sequence, including these rows."""
        return self.start + self.rows

    def cut(self, rows: int) -> tuple[Span, Span | None]:
        """Split into the first `rows` rows and the remaining ones, or None."""
        if rows >= self.rows:
            return self, None
        middle = self.begin + rows
        return Span(self.slot, self.start, self.begin, middle), Span(self.slot, self.start + rows, middle, self.end)


@dataclass(frozen=True, slots=True)
class Group:
    """Spans of adjacent slots, padded to the longest by repeating each span's last row."""

    spans: tuple[Span, ...]
    rows: int
    length: int  # tokens of the longest sequence

    @classmethod
    def of(cls, *spans: Span) -> Group:
        """Build a group of these spans."""
        return cls(spans, max(span.rows for span in spans), max(span.length for span in spans))

    def flat(self) -> list[int]:
        """Return the rows' flat indices in the forward, span by span."""
        rows = range(self.rows)
        return [span.begin + min(row, span.rows - 1) for span in self.spans for row in rows]

    def positions(self) -> Tensor:
        """Return the rows' positions in their sequences [spans, rows]."""
        rows = range(self.rows)
        return torch.tensor([[span.start + min(row, span.rows - 1) for row in rows] for span in self.spans])


@dataclass(frozen=True, slots=True)
class Grouping:
    """All rows of a forward, in groups.

    `taken` holds each group's flat rows. `order` [rows] is each row's index in the concatenated rows of the groups, or
    None if that is the flat index itself.
    """

    groups: tuple[Group, ...]
    taken: tuple[slice | Tensor, ...]
    order: Tensor | None

    @classmethod
    def of(cls, spans: Sequence[Span], folded: int, *, alone: bool = False, unit: int = 1) -> Grouping:
        """Return the cheapest grouping, or one call per span if `alone`.

        A row counts as `folded` query rows, padded to a multiple of `unit`.
        """
        if alone or len(spans) == 1:
            return cls(tuple(Group.of(s) for s in spans), tuple(slice(s.begin, s.end) for s in spans), None)
        groups = [group for run in _runs(spans) for group in _split(run, folded, unit)]
        laid = [row for group in groups for row in group.flat()]
        index = {row: i for i, row in reversed(list(enumerate(laid)))}
        order = torch.tensor([index[row] for row in range(len(index))])
        return cls(tuple(groups), tuple(_take(group) for group in groups), None if laid == sorted(index) else order)


def _runs(spans: Sequence[Span]) -> list[list[Span]]:
    """Return runs of spans in adjacent slots with the same number of key blocks."""
    runs: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.slot):
        last = runs[-1][-1] if runs else None
        if last and span.slot == last.slot + 1 and _blocks(span) == _blocks(last):
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _split(run: Sequence[Span], folded: int, unit: int) -> list[Group]:
    """Split a run into rows that share one call of attention and a rest, or into single spans if that costs less."""
    blocks = _blocks(run[0])

    def cost(rows: int) -> int:
        rest = [span.rows - rows for span in run if span.rows > rows]
        together = CALL + GATHERING + blocks * len(run) * (PASS + _padded(rows * folded, unit)) if rows else 0
        return together + sum(CALL + blocks * (PASS + _padded(more * folded, unit)) for more in rest)

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
