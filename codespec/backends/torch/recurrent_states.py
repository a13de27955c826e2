"""Store the states of recurrent layers for each slot of a cache, so that a slot can be rolled back.

A recurrent state can't be truncated like keys and values, because one matrix represents the whole text. Each slot
therefore has a state after its last row (the **tip**), an earlier state (the **base**), and a record of the rows
between them, from which any state between the two can be recomputed. A rollback only sets the length of the slot. The
next forward pass moves the base to the slot's length, by swapping base and tip if no row was rejected, otherwise by
recomputing the accepted rows. The base is never more than `WINDOW` rows before the tip, which limits the recomputation.

A later prompt may share a prefix with a slot's text, but the state at the end of the shared prefix is usually lost.
States are therefore saved at a few positions: before the parts of a prompt that change with the next keystroke
(`branching_points`), and once in the generated text. `resumable` returns the last position from which a slot
can continue.

The states of all layers of a slot have the same positions, so `States.plan` plans a forward pass once for all layers.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from codespec.backends.language_model import Rows

WINDOW = 80  # most rows between base and tip; more than the longest draft with the default settings
ANCHORS = 4  # states saved at positions of the prompt
RECENT = ANCHORS  # index of the saved state in the written text
FIRST_KEPT = 2  # index of the first saved state; 0 and 1 are base and tip
GRID = 32  # states are saved for later prompts at multiples of this position
SLACK = 4  # tokens at the end of a part of a prompt that may be split differently after the next keystroke
PARTS = 2  # parts of a prompt with saved states, in addition to its end


@dataclass(frozen=True, slots=True)
class StateShape:
    """The sizes of a layer's float32 state, of the history that its convolution reads (in rows), and of a row."""

    state: tuple[int, ...]
    history: int
    width: int

    def nbytes(self, dtype: torch.dtype) -> int:
        """Return the size of one slot in bytes."""
        rows = (self.history + WINDOW + (ANCHORS + 1) * self.history) * self.width * dtype.itemsize
        return rows + (FIRST_KEPT + ANCHORS + 1) * math.prod(self.state) * torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The buffers of one layer."""

    states: Tensor  # [slots, 2 + saved, …], base and tip, in changing order, then the saved states
    rows: Tensor  # [slots, history + WINDOW, width], the rows before and after the base
    before: Tensor  # [slots, saved, history, width], the rows before each saved state


@dataclass(slots=True)
class Place:
    """The positions of a slot's states. `base_at` is the index of the base (0 or 1); the tip has the other index.

    Rows from `base` to `end` are recorded, and rows before `settled` can no longer be rejected. `tip` is the position
    of the tip state, or None. `blank` means that the base has not been zeroed yet.
    """

    base: int = 0
    end: int = 0
    settled: int = 0
    tip: int | None = None
    base_at: int = 0
    blank: bool = True
    kept: dict[int, int] = field(default_factory=dict)  # index -> position
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Rows at positions first…last-1, which update state `source` to state `target` (indices in `LayerStates`)."""

    first: int
    last: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The rows that every recurrent layer computes, reads and stores for one sequence in a forward pass."""

    slot: int
    start: int
    rows: int
    first: int  # the position of the first row to compute; rows before `start` come from the record
    recorded: slice  # the slice of the record to read, which begins with the history of `first`
    runs: tuple[Run, ...]
    write_at: int  # the index in the record at which the last `kept_rows` rows are written after the pass
    kept_rows: int
    copies: Mapping[int, int]  # position -> index of the state saved there
    after: Place  # the slot's positions after the pass


class States:
    """The states of all recurrent layers of a model in `slots` slots."""

    def __init__(self, shapes: Mapping[int, StateShape], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.history = max(shape.history for shape in shapes.values())
        assert all(shape.history == self.history for shape in shapes.values())
        self.places = [Place() for _ in range(slots)]
        self.layers: dict[int, LayerStates] = {}
        kept = ANCHORS + 1
        for layer, shape in shapes.items():
            self.layers[layer] = LayerStates(
                zeros((slots, FIRST_KEPT + kept, *shape.state), torch.float32, device),
                zeros((slots, shape.history + WINDOW, shape.width), dtype, device),
                zeros((slots, kept, shape.history, shape.width), dtype, device),
            )

    def resumable(self, slot: int, length: int) -> int:
        """Return the largest position, at most `length`, from which the slot can continue."""
        place = self.places[slot]
        if place.base <= length <= place.end:
            return length
        known = [*place.kept.values(), place.end]
        return max((position for position in known if position <= length), default=0)

    def cut(self, slot: int, length: int) -> None:
        """Roll the slot back to `length`, a value that `resumable` returned, and mark all earlier rows as accepted."""
        place = self.places[slot]
        place.kept = {index: position for index, position in place.kept.items() if position <= length}
        if place.base <= length <= place.end:
            place.settled = place.end = length
            if place.tip is not None and place.tip > length:
                place.tip = None
        elif length:
            self._restore(slot, length)
        else:
            place.base = place.end = place.settled = 0
            place.tip, place.blank = None, True

    def assume(self, slot: int, length: int) -> None:
        """Mark a slot as holding `length` positions without computing them, for timing."""
        self.places[slot] = Place(length, length, length)

    def want(self, slot: int, positions: Collection[int]) -> None:
        """Request that the states at the last ANCHORS of these positions be saved when they are computed."""
        self.places[slot].wanted = tuple(sorted(set(positions)))[-ANCHORS:]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions, a value that `resumable` returned, of slot `source` to slot `target`."""
        place = self.places[source]
        within = place.base <= length <= place.end and not place.blank
        at = place.base_at if within else FIRST_KEPT + _index_of(place, length) if length else None
        kept = {index: position for index, position in place.kept.items() if position <= length}
        if at is None:
            self.places[target] = Place(kept=kept)
            return
        base = place.base if within else length
        rows = self.history + length - base
        for layer in self.layers.values():
            layer.states[target, 0] = layer.states[source, at]
            before = layer.rows[source, :rows] if within else layer.before[source, at - FIRST_KEPT]
            layer.rows[target, :rows] = before
            for index in kept:
                layer.states[target, FIRST_KEPT + index] = layer.states[source, FIRST_KEPT + index]
                layer.before[target, index] = layer.before[source, index]
        self.places[target] = Place(base, length, length, blank=False, kept=kept)

    def plan(self, batch: Sequence[Rows]) -> list[StatePlan]:
        """Plan a forward pass, whose slots count as empty until `finish`, so an interruption leaves no wrong state."""
        return [self._plan(rows.slot, rows.start, len(rows.ids)) for rows in batch]

    def finish(self, plans: Sequence[StatePlan]) -> None:
        """Record the new positions of the slots. Call `finish` after all layers have run."""
        for plan in plans:
            self.places[plan.slot] = plan.after

    def _plan(self, slot: int, start: int, count: int) -> StatePlan:
        place, after = self._begin(slot, start)
        tip = place.tip if place.tip is not None and place.tip <= start else None
        settled = min(place.settled, start)
        if start > place.base and start + count - settled > WINDOW:
            settled = start
        runs: list[Run] = []
        if settled > place.base:
            if tip == settled:
                after.base_at, tip = 1 - place.base_at, None
            else:
                runs.append(Run(place.base, settled, place.base_at, place.base_at))
            after.base = settled
        base_at, tip_at = after.base_at, 1 - after.base_at
        if after.base == start:
            certain = max(0, count - WINDOW)
            if certain:
                runs.append(Run(start, start + certain, base_at, base_at))
                after.base += certain
            runs.append(Run(start + certain, start + count, base_at, tip_at))
        else:
            if tip != start:
                runs.append(Run(after.base, start, base_at, tip_at))
            runs.append(Run(start, start + count, tip_at, tip_at))
        after.tip = after.end = start + count
        after.settled = after.base
        first, moved = runs[0].first, after.base - place.base
        return StatePlan(
            slot=slot,
            start=start,
            rows=count,
            first=first,
            recorded=slice(first - place.base, start - place.base + self.history),
            runs=tuple(runs),
            write_at=0 if moved else self.history + start - place.base,
            kept_rows=after.end - after.base + self.history if moved else count,
            copies=_copies(after, first, start, bool(moved)),
            after=after,
        )

    def _begin(self, slot: int, start: int) -> tuple[Place, Place]:
        """Return a slot's `Place` before a forward pass that begins at `start`, and a copy for the plan to change."""
        if not self.places[slot].base <= start <= self.places[slot].end:
            self.cut(slot, start)  # the text starts over without a rollback
        place = self.places[slot]
        if place.blank:
            for layer in self.layers.values():
                layer.states[slot, place.base_at].zero_()
                layer.rows[slot, : self.history].zero_()
        self.places[slot] = Place()
        return place, replace(place, kept=dict(place.kept), blank=False)

    def _restore(self, slot: int, position: int) -> None:
        """Replace the base with the state that was saved at `position`."""
        place = self.places[slot]
        index = _index_of(place, position)
        for layer in self.layers.values():
            layer.states[slot, place.base_at] = layer.states[slot, FIRST_KEPT + index]
            layer.rows[slot, : self.history] = layer.before[slot, index]
        place.base = place.end = place.settled = position
        place.tip, place.blank = None, False


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of zeros. On a CPU, pages are allocated on first write, so unused pages cost nothing."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)


def branching_points(ids: Sequence[int], special_ids: Collection[int]) -> list[int]:
    """Return positions just before the ends of a prompt's last parts, which the next keystroke may change."""
    special = [place for place, token in enumerate(ids) if token in special_ids]
    ends = [*special[-PARTS:], len(ids)]
    points = {(end - SLACK) // GRID * GRID for end in ends}
    return sorted(point for point in points if point > 0)


def _index_of(place: Place, position: int) -> int:
    indices = [index for index, kept in place.kept.items() if kept == position]
    assert indices, f"no state is saved at position {position}"
    return indices[0]


def _copies(after: Place, first: int, start: int, moved: bool) -> dict[int, int]:
    """Choose the states to save in a forward pass, and record their positions in `after`."""
    copies: dict[int, int] = {}
    for position in after.wanted:
        if start < position <= after.end and position not in after.kept.values():
            free = [index for index in range(ANCHORS) if index not in after.kept]
            index = free[0] if free else min(range(ANCHORS), key=lambda anchor: after.kept[anchor])
            after.kept[index] = position
            copies[position] = index
    recent = after.kept.get(RECENT, 0)
    if moved and after.base >= first and after.base // GRID > recent // GRID and after.base not in copies:
        after.kept[RECENT] = after.base
        copies[after.base] = RECENT
    return copies
