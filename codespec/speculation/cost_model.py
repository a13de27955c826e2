"""Cost model: forward times by rows, context and batch as measured on this machine, and which draft positions pay.

All rows of a forward share one pass over the weights, so its cost depends on the rows of the whole batch, plus a cost
for the number of sequences and their lengths. This module interpolates measurements; it takes none. `RunningCosts`
scales the table from the first start, when the machine may have been busy, to the actual rounds.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

MAX_ROWS = 1 << 31  # limit for rows and context tokens in a file
STEP, MIN_STEP = 0.5, 0.01  # maximum change of a ratio's logarithm by the first and by late forwards
SLOWER = 4.0  # forwards after which that change is halved
OFTEN = 32  # steps between two new tables


@dataclass(frozen=True, slots=True)
class Point:
    """One measured forward: `rows` rows in total from `batch` sequences with `context` tokens each."""

    rows: int
    batch: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by rows: nondecreasing, linear between measured points and beyond the last one."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def fit(cls, points: Mapping[int, float]) -> Curve:
        """Return the nearest nondecreasing curve.

        Neighbours in the wrong order are averaged. They are noise, because more rows never take less time.
        """
        blocks: list[tuple[float, int]] = []  # mean, points
        for _, value in sorted(points.items()):
            mean, count = value, 1
            while blocks and blocks[-1][0] > mean:
                before, many = blocks.pop()
                mean, count = (before * many + mean * count) / (many + count), many + count
            blocks.append((mean, count))
        return cls(tuple(sorted(points)), tuple(mean for mean, count in blocks for _ in range(count)))

    def at(self, rows: float) -> float:
        """Return the seconds for this number of rows."""
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        right = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        slope = (self.seconds[right] - self.seconds[left]) / (self.rows[right] - self.rows[left])
        return self.seconds[left] + slope * (rows - self.rows[left])


FREE = Curve((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """Cost of one model's forward.

    `curves` are by context length of one sequence. `batches` is the extra cost of this many one-row sequences over one
    sequence with as many rows.
    """

    contexts: tuple[int, ...]
    curves: tuple[Curve, ...]
    batches: Curve = FREE

    @classmethod
    def from_points(cls, points: Iterable[Point]) -> ForwardCost:
        """Fit measured points: any number of contexts at batch 1, larger batches at the shortest context."""
        known = sorted(points, key=lambda point: (point.context, point.batch, point.rows))
        contexts = tuple(dict.fromkeys(point.context for point in known if point.batch == 1))
        curves = tuple(
            Curve.fit({p.rows: p.seconds for p in known if p.batch == 1 and p.context == context})
            for context in contexts
        )
        extra = {p.batch: max(0.0, p.seconds - curves[0].at(p.rows)) for p in known if p.batch > 1}
        return cls(contexts, curves, Curve.fit({1: 0.0, **extra}))

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Return the seconds of a forward with `rows` rows in total and `context` tokens per sequence on average."""
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
            raise ValueError("there must be one curve for each context")
        return cls(contexts, curves, _curve(values["batches"]))


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of a round's parts in seconds: the target's forward, each drafting model's forward, and `draft`.

    `draft` is the cost of one draft apart from forwards: the search, the encoding and the acceptance. Drafters in
    `whole` produce a whole draft in one forward, the others one unit.
    """

    target: ForwardCost
    drafters: Mapping[str, ForwardCost] = field(default_factory=dict)
    draft: float = 0.0
    whole: tuple[str, ...] = ()

    def step(self, rows: int, batch: int, context: int, longest: int) -> StepCost:
        """Return the costs of a step with `rows` rows from `batch` sequences, and of up to `longest` draft tokens more.

        `context` is the average sequence length in tokens.
        """
        seconds = self.target.seconds
        before = seconds(rows, batch, context)
        extra = tuple(seconds(more, batch, context) - before for more in range(rows, rows + longest + 1))
        forwards = {name: cost.seconds(batch, batch, context) / batch for name, cost in self.drafters.items()}
        return StepCost(batch, context, seconds(batch, batch, context), self.draft, extra, forwards)

    def as_dict(self) -> dict[str, Any]:
        """Return the table as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostTable:
        """Parse the output of `as_dict`. Raises ValueError, TypeError or KeyError for invalid values."""
        drafters = {str(name): ForwardCost.from_dict(found) for name, found in values["drafters"].items()}
        whole = tuple(str(name) for name in values["whole"])
        draft = float(values["draft"])
        if not (math.isfinite(draft) and draft >= 0.0):
            raise ValueError("a draft needs seconds")
        return cls(ForwardCost.from_dict(values["target"]), drafters, draft, whole)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Price of one step.

    `plain` is the time of the step without drafts in seconds, `extra[n]` the time of n more rows. `forwards` is one
    sequence's share of each drafter's forward if all sequences draft. `draft` is the cost of a draft apart from its
    rows and forwards. `price` is the value of a second in tokens.
    """

    batch: int
    context: int
    plain: float
    draft: float
    extra: tuple[float, ...]
    forwards: Mapping[str, float] = field(default_factory=dict)
    price: float = 0.0

    @property
    def row(self) -> float:
        """Seconds of one more row: the mean of up to four, because costs rise in steps."""
        rows = min(4, len(self.extra) - 1)
        return self.extra[rows] / max(1, rows)

    def gain(self, survival: Sequence[float], token: float = 0.0, begin: float = 0.0) -> float:
        """Return the net gain in tokens of the best draft length, or a negative value if none pays.

        Drafting takes `begin` seconds plus `token` seconds per token.
        """
        best, tokens = -1.0, 0.0
        for length, chance in enumerate(survival, 1):
            tokens += chance
            best = max(best, tokens - self.price * (self.extra[length] + self.draft + begin + length * token))
        return best

    def rounds(self, seconds: float) -> float:
        """Convert seconds to plain rounds of one sequence, which is its share of a step."""
        return self.batch * seconds / self.plain

    def affords(self, rounds: float, token: float = 0.0) -> int:
        """Return how many tokens one sequence may draft and verify for this many of its own rounds.

        Each token takes `token` seconds to draft. Assumes that all sequences draft as many.
        """
        longest = (len(self.extra) - 1) // self.batch
        costs = (self.extra[self.batch * n] / self.plain + self.rounds(n * token) for n in range(1, longest + 1))
        return next((n for n, cost in enumerate(costs) if cost > rounds), longest)


def best_lengths(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float], price: float) -> list[int]:
    """Return how many positions of each sequence to verify, maximizing expected tokens − price × seconds(positions).

    All rows of a step share one forward, so the best n positions are the n most likely. `survivals[r]` never increases,
    so these are prefixes of the drafts. `seconds(n)` is the cost of n more rows; `price` is in tokens per second. Ties
    go to the smaller number of positions.
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
        raise ValueError("a curve needs numbers of rows")
    if len(rows) != len(seconds) or not increasing or not sound:
        raise ValueError("a curve needs increasing rows and as many seconds")
    return Curve(rows, seconds)


@dataclass(slots=True)
class Ratio:
    """Approximate running median of measured over tabulated time; 1 without samples.

    A median ignores the occasional step in which the process has to wait for others.
    """

    middle: float = 1.0
    count: int = 0

    def add(self, ratio: float) -> None:
        """Add the ratio of one forward."""
        step = max(MIN_STEP, STEP / (1.0 + self.count / SLOWER))
        away = math.log(max(ratio, 1e-9) / self.middle)
        self.middle *= math.exp(min(step, max(-step, away)))
        self.count += 1


@dataclass(slots=True)
class RunningCosts:
    """Ratios to the initial `table`.

    There is one for each power of two of a verify's rows, and one for all drafting models.
    """

    table: CostTable
    drafting: float = 1.0  # the drafting models' ratio in the last fitted table
    _verify: dict[int, Ratio] = field(default_factory=dict)
    _draft: Ratio = field(default_factory=Ratio)
    _steps: int = 0

    def took(self, rows: int, verify: tuple[float, float], draft: tuple[float, float]) -> bool:
        """Record one step and return whether a new table is due.

        `verify` and `draft` are (tabulated, measured) seconds; 0 for none. `rows` is the number of rows of the verify.
        """
        if verify[0] > 0.0:
            self._verify.setdefault(rows.bit_length(), Ratio()).add(verify[1] / verify[0])
        if draft[0] > 0.0:
            self._draft.add(draft[1] / draft[0])
        self._steps += 1
        return self._steps % OFTEN == 0

    def fitted(self) -> CostTable:
        """Return the table with current costs. Ratios for unseen row counts are interpolated."""
        target, table = self.table.target, self.table
        curves = tuple(
            Curve.fit({n: seconds * self._ratio(n) for n, seconds in zip(curve.rows, curve.seconds, strict=True)})
            for curve in target.curves
        )
        usual = self._ratio(1)
        self.drafting = self._draft.middle if self._draft.count else usual
        return replace(
            table,
            target=ForwardCost(target.contexts, curves, _times(target.batches, usual)),
            drafters={name: _scaled(cost, self.drafting) for name, cost in table.drafters.items()},
            draft=table.draft * usual,
        )

    def _ratio(self, rows: int) -> float:
        """Return the ratio for a verify with this many rows, between those seen."""
        seen = sorted(self._verify)
        if not seen:
            return 1.0
        logarithms = [math.log(self._verify[size].middle) for size in seen]
        return math.exp(np.interp(rows.bit_length(), seen, logarithms))


def _scaled(cost: ForwardCost, ratio: float) -> ForwardCost:
    return ForwardCost(cost.contexts, tuple(_times(curve, ratio) for curve in cost.curves), _times(cost.batches, ratio))


def _times(curve: Curve, ratio: float) -> Curve:
    return Curve(curve.rows, tuple(seconds * ratio for seconds in curve.seconds))
