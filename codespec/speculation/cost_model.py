"""Interpolate measured forward times by rows, context and batch, and find the draft positions worth verifying.

All rows of a forward pass share one pass over the weights, so the time depends on the rows of the whole batch, and also
on the number of sequences and their lengths. The cost table may have been measured on a busy machine, so the table is
scaled to the times of actual rounds.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

MAX_ROWS = 1 << 31  # limit for rows and context tokens in a file
STEP, MIN_STEP = 0.5, 0.01  # maximum change of a ratio's logarithm in the first and in late forward passes
SLOWER = 4.0  # forward passes after which that change is halved
OFTEN = 32  # steps until a new table is fitted


@dataclass(frozen=True, slots=True)
class Point:
    """A measured forward pass with `rows` rows in total, from `batch` sequences of `context` tokens each."""

    rows: int
    batch: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Forward time in seconds as a nondecreasing function of rows, linear between and beyond the measured points."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def fit(cls, points: Mapping[int, float]) -> Curve:
        """Fit a nondecreasing curve to the measured points, because more rows never take less time."""
        blocks: list[tuple[float, int]] = []  # mean, points
        for _, value in sorted(points.items()):
            mean, count = value, 1
            while blocks and blocks[-1][0] > mean:
                before, many = blocks.pop()
                mean, count = (before * many + mean * count) / (many + count), many + count
            blocks.append((mean, count))
        return cls(tuple(sorted(points)), tuple(mean for mean, count in blocks for _ in range(count)))

    def at(self, rows: float) -> float:
        """Return the time of a forward pass with this number of rows, in seconds."""
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        right = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        slope = (self.seconds[right] - self.seconds[left]) / (self.rows[right] - self.rows[left])
        return self.seconds[left] + slope * (rows - self.rows[left])


FREE = Curve((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """The cost of one model's forward pass in seconds."""

    contexts: tuple[int, ...]
    curves: tuple[Curve, ...]  # of one sequence with `contexts[i]` tokens
    batches: Curve = FREE  # extra cost of n sequences with one row each, compared with one sequence with n rows

    @classmethod
    def from_points(cls, points: Iterable[Point]) -> ForwardCost:
        """Fit measured points: single sequences at several contexts, and larger batches at the shortest context."""
        known = sorted(points, key=lambda point: (point.context, point.batch, point.rows))
        contexts = tuple(dict.fromkeys(point.context for point in known if point.batch == 1))
        curves = tuple(
            Curve.fit({p.rows: p.seconds for p in known if p.batch == 1 and p.context == context})
            for context in contexts
        )
        extra = {p.batch: max(0.0, p.seconds - curves[0].at(p.rows)) for p in known if p.batch > 1}
        return cls(contexts, curves, Curve.fit({1: 0.0, **extra}))

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Return the forward time in seconds for `rows` rows in total and `context` tokens per sequence on average."""
        right = min(bisect_right(self.contexts, context), len(self.contexts) - 1)
        left = max(0, right - 1)
        low, high = self.curves[left].at(rows), self.curves[right].at(rows)
        span = self.contexts[right] - self.contexts[left]
        share = (context - self.contexts[left]) / span if span else 0.0
        return low + max(0.0, high - low) * min(1.0, max(0.0, share)) + self.batches.at(batch)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ForwardCost:
        """Parse the output of `asdict`. Raises ValueError, TypeError or KeyError for invalid values."""
        curves = tuple(_curve(found) for found in values["curves"])
        contexts = tuple(int(length) for length in values["contexts"])
        if len(curves) != len(contexts) or not curves or not all(0 <= length <= MAX_ROWS for length in contexts):
            raise ValueError("a forward cost must have one curve for each of its contexts")
        return cls(contexts, curves, _curve(values["batches"]))


@dataclass(frozen=True, slots=True)
class CostTable:
    """The costs of the parts of a round."""

    target: ForwardCost
    drafters: Mapping[str, ForwardCost] = field(default_factory=dict)
    draft: float = 0.0  # seconds per draft for lookup, encoding and acceptance
    whole: tuple[str, ...] = ()  # drafters whose forward pass produces a whole draft; other drafters' produces one unit

    def step(self, rows: int, batch: int, context: int, longest: int) -> StepCost:
        """Return the costs of a step with `rows` rows, and up to `longest` more, at the mean length `context`."""
        seconds = self.target.seconds
        before = seconds(rows, batch, context)
        extra = tuple(seconds(more, batch, context) - before for more in range(rows, rows + longest + 1))
        forwards = {name: cost.seconds(batch, batch, context) / batch for name, cost in self.drafters.items()}
        return StepCost(batch, context, seconds(batch, batch, context), self.draft, extra, forwards)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostTable:
        """Parse the output of `asdict`. Raises ValueError, TypeError or KeyError for invalid values."""
        drafters = {str(name): ForwardCost.from_dict(found) for name, found in values["drafters"].items()}
        whole = tuple(str(name) for name in values["whole"])
        draft = float(values["draft"])
        if not (math.isfinite(draft) and draft >= 0.0):
            raise ValueError("the cost of a draft is negative or not finite")
        return cls(ForwardCost.from_dict(values["target"]), drafters, draft, whole)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The costs of one step in seconds."""

    batch: int  # sequences
    context: int  # average length of the sequences in tokens
    plain: float  # of the step without drafts
    draft: float  # per draft, without forward passes
    extra: tuple[float, ...]  # of 0, 1, 2, … more rows
    forwards: Mapping[str, float] = field(
        default_factory=dict
    )  # by drafter: a sequence's share of a batch's forward pass
    price: float = 0.0  # tokens that one second is worth

    @property
    def row(self) -> float:
        """The seconds of one more row, averaged over up to four rows because costs rise in steps."""
        rows = min(4, len(self.extra) - 1)
        return self.extra[rows] / max(1, rows)

    def gain(self, survival: Sequence[float], token: float = 0.0, begin: float = 0.0) -> float:
        """Return the net gain in tokens of the best draft, which costs `begin` seconds plus `token` per token."""
        best, tokens = -1.0, 0.0
        for length, chance in enumerate(survival, 1):
            tokens += chance
            best = max(best, tokens - self.price * (self.extra[length] + self.draft + begin + length * token))
        return best

    def rounds(self, seconds: float) -> float:
        """Convert seconds to plain rounds, each of which is one sequence's share of a step without drafts."""
        return self.batch * seconds / self.plain

    def affords(self, rounds: float, token: float = 0.0) -> int:
        """Return how many tokens, of `token` seconds each, a sequence may draft and verify in `rounds` plain rounds."""
        longest = (len(self.extra) - 1) // self.batch
        costs = (self.extra[self.batch * n] / self.plain + self.rounds(n * token) for n in range(1, longest + 1))
        return next((n for n, cost in enumerate(costs) if cost > rounds), longest)


def best_lengths(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float], price: float) -> list[int]:
    """Return how many positions of each sequence to verify to maximize expected tokens − price × seconds(positions).

    All rows of a step share one forward pass, so the best n positions are the n most likely ones. The most likely
    positions form prefixes of the drafts, because the probabilities in `survivals[r]` never increase. `seconds(n)` is
    the cost of n more rows, and `price` the number of tokens that one second is worth. If several numbers of positions
    are equally good, the smallest number is chosen.
    """
    ranked = sorted(
        (-survival, number, position)
        for number, probabilities in enumerate(survivals)
        for position, survival in enumerate(probabilities)
    )
    best, count, tokens = 0.0, 0, 0.0
    for rows, (survival, _, _) in enumerate(ranked, 1):
        tokens -= survival
        gain = tokens - price * seconds(rows)
        if gain > best:
            best, count = gain, rows
    lengths = [0] * len(survivals)
    for _, number, _ in ranked[:count]:
        lengths[number] += 1
    return lengths


def _curve(values: Mapping[str, Any]) -> Curve:
    rows = tuple(int(number) for number in values["rows"])
    seconds = tuple(float(number) for number in values["seconds"])
    increasing = all(a < b for a, b in itertools.pairwise(rows))
    sound = all(math.isfinite(number) and number >= 0.0 for number in seconds)
    if not rows or not 0 <= rows[0] <= max(rows) <= MAX_ROWS:
        raise ValueError("a curve has no points, or a point with an invalid number of rows")
    if len(rows) != len(seconds) or not increasing or not sound:
        raise ValueError("a curve must have increasing numbers of rows, each with a finite number of seconds")
    return Curve(rows, seconds)


@dataclass(slots=True)
class Ratio:
    """Approximate running median of measured divided by tabulated times, which ignores the occasional slow step."""

    middle: float = 1.0
    count: int = 0

    def add(self, ratio: float) -> None:
        """Move the median towards a new ratio."""
        step = max(MIN_STEP, STEP / (1.0 + self.count / SLOWER))
        away = math.log(max(ratio, 1e-9) / self.middle)
        self.middle *= math.exp(min(step, max(-step, away)))
        self.count += 1


@dataclass(slots=True)
class RunningCosts:
    """Ratios of measured to tabulated times: one for each power of two of target rows, one for all drafters."""

    table: CostTable
    drafting: float = 1.0  # the drafters' ratio in the last fitted table
    _verify: dict[int, Ratio] = field(default_factory=dict)
    _draft: Ratio = field(default_factory=Ratio)
    _steps: int = 0

    def took(self, rows: int, verify: tuple[float, float], draft: tuple[float, float]) -> bool:
        """Record a step's rows and (tabulated, measured) seconds; return whether a new table should be fitted."""
        if verify[0] > 0.0:
            self._verify.setdefault(rows.bit_length(), Ratio()).add(verify[1] / verify[0])
        if draft[0] > 0.0:
            self._draft.add(draft[1] / draft[0])
        self._steps += 1
        return self._steps % OFTEN == 0

    def fitted(self) -> CostTable:
        """Return the table scaled to current costs, with interpolated ratios for unmeasured row counts."""
        table, one_row = self.table, self._ratio(1)
        self.drafting = self._draft.middle if self._draft.count else one_row
        drafters = {name: _scaled(cost, lambda rows: self.drafting) for name, cost in table.drafters.items()}
        return replace(table, target=_scaled(table.target, self._ratio), drafters=drafters, draft=table.draft * one_row)

    def _ratio(self, rows: int) -> float:
        """Return the ratio for a forward pass with this many rows, interpolated between measured ratios."""
        seen = sorted(self._verify)
        if not seen:
            return 1.0
        logarithms = [math.log(self._verify[size].middle) for size in seen]
        return math.exp(np.interp(rows.bit_length(), seen, logarithms))


def _scaled(cost: ForwardCost, ratio: Callable[[int], float]) -> ForwardCost:
    """Multiply the seconds for n rows by ratio(n), and the extra seconds of a batch by ratio(1)."""
    points = [zip(curve.rows, curve.seconds, strict=True) for curve in cost.curves]
    curves = tuple(Curve.fit({rows: seconds * ratio(rows) for rows, seconds in own}) for own in points)
    extra = tuple(seconds * ratio(1) for seconds in cost.batches.seconds)
    return ForwardCost(cost.contexts, curves, Curve(cost.batches.rows, extra))
