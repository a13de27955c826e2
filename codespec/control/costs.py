"""What rounds cost: seconds of a forward by rows, context and batch, as measured on this machine. Plain data.

A forward's rows share one pass over the weights, so its cost depends on the rows of the whole batch; how long the
sequences are, and how many, comes on top. Knows numbers and how to read between them; measures nothing.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_ROWS = 1 << 31  # of a point, and tokens of a context: beyond that no float holds them
ROUND = 2e-4  # seconds a round costs beside its forwards: bookkeeping in Python


@dataclass(frozen=True, slots=True)
class Point:
    """One measured forward: `batch` sequences of `context` tokens each bring `rows` rows together."""

    rows: int
    batch: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over rows, never falling; straight between the measured points and on beyond the last."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def fit(cls, points: Mapping[int, float]) -> Curve:
        """The nearest curve that never falls (neighbours that do are averaged: noise, since work only grows)."""
        blocks: list[tuple[float, int]] = []  # mean, points
        for _, value in sorted(points.items()):
            mean, count = value, 1
            while blocks and blocks[-1][0] > mean:
                before, many = blocks.pop()
                mean, count = (before * many + mean * count) / (many + count), many + count
            blocks.append((mean, count))
        return cls(tuple(sorted(points)), tuple(mean for mean, count in blocks for _ in range(count)))

    def at(self, rows: float) -> float:
        """Seconds for so many rows."""
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        right = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        slope = (self.seconds[right] - self.seconds[left]) / (self.rows[right] - self.rows[left])
        return self.seconds[left] + slope * (rows - self.rows[left])


FREE = Curve((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """What one model's forward costs. `curves` are by context length (of one sequence); `batches` is what so many
    sequences of one row each cost more than one sequence of as many rows.
    """

    contexts: tuple[int, ...]
    curves: tuple[Curve, ...]
    batches: Curve = FREE

    @classmethod
    def from_points(cls, points: Iterable[Point]) -> ForwardCost:
        """Fits measured points: any number of contexts at batch 1, larger batches at the shortest of them."""
        known = sorted(points, key=lambda point: (point.context, point.batch, point.rows))
        contexts = tuple(dict.fromkeys(point.context for point in known if point.batch == 1))
        curves = tuple(
            Curve.fit({p.rows: p.seconds for p in known if p.batch == 1 and p.context == context})
            for context in contexts
        )
        extra = {p.batch: max(0.0, p.seconds - curves[0].at(p.rows)) for p in known if p.batch > 1}
        return cls(contexts, curves, Curve.fit({1: 0.0, **extra}))

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Seconds of a forward of `rows` rows of `batch` sequences, `context` tokens long on average."""
        right = min(bisect_right(self.contexts, context), len(self.contexts) - 1)
        left = max(0, right - 1)
        low, high = self.curves[left].at(rows), self.curves[right].at(rows)
        span = self.contexts[right] - self.contexts[left]
        share = (context - self.contexts[left]) / span if span else 0.0
        return low + max(0.0, high - low) * min(1.0, max(0.0, share)) + self.batches.at(batch)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ForwardCost:
        """Reads what `asdict` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        curves = tuple(_curve(found) for found in values["curves"])
        contexts = tuple(int(length) for length in values["contexts"])
        if len(curves) != len(contexts) or not curves or not all(0 <= length <= MOST_ROWS for length in contexts):
            raise ValueError("there must be one curve for each context")
        return cls(contexts, curves, _curve(values["batches"]))


@dataclass(frozen=True, slots=True)
class CostTable:
    """What a round can be made of: the target's forward, each drafting model's, `retokenize`: what drafts cost beside
    all forwards, by how many of a step's sequences have one (the first is the dearest: the forwards before it have
    emptied the machine's caches; several of different lengths are attended apart), and looking at the syntax around one
    tip. Seconds.
    """

    target: ForwardCost
    drafters: Mapping[str, ForwardCost] = field(default_factory=dict)
    retokenize: Curve = FREE
    look: float = 0.0

    def plain(self, batch: int, context: float) -> float:
        """A round in which nothing is drafted."""
        return self.target.seconds(batch, batch, context) + ROUND

    def spelling(self, drafts: float) -> float:
        """A step's drafts beside all forwards: to find, encode, weigh and judge them, and what they slow down."""
        return self.retokenize.at(drafts) if drafts else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostTable:
        """Reads what `as_dict` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        drafters = {str(name): ForwardCost.from_dict(found) for name, found in values["drafters"].items()}
        target, look = ForwardCost.from_dict(values["target"]), float(values["look"])
        if not math.isfinite(look) or look < 0.0:
            raise ValueError("a time is finite and not negative")
        return cls(target, drafters, _curve(values["retokenize"]), look)


def _curve(values: Mapping[str, Any]) -> Curve:
    rows = tuple(int(number) for number in values["rows"])
    seconds = tuple(float(number) for number in values["seconds"])
    increasing = all(a < b for a, b in itertools.pairwise(rows))
    sound = all(math.isfinite(number) and number >= 0.0 for number in seconds)
    if not rows or not 0 <= rows[0] <= max(rows) <= MOST_ROWS:
        raise ValueError("a curve needs numbers of rows")
    if len(rows) != len(seconds) or not increasing or not sound:
        raise ValueError("a curve needs increasing rows and as many seconds")
    return Curve(rows, seconds)
