"""What rounds cost: seconds of a forward by rows, context and batch, as measured on this machine; the price of one
step; and which draft positions of a batch are worth their rows.

A forward's rows share one pass over the weights, so its cost depends on the rows of the whole batch; how long the
sequences are, and how many, comes on top. Knows numbers and how to read between them; measures nothing.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

MOST_ROWS = 1 << 31  # of a point, and tokens of a context: beyond that no float holds them
BUCKET = 64  # tokens of context that are taken for equally long
MOST_KNOWN = 512  # steps whose price is remembered


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
    """What a round can be made of, in seconds: the target's forward, each drafting model's, and `retokenize`: what a
    step's drafts cost beside all forwards, by how many there are (encoding them; drafts of different lengths are also
    attended to apart). Those named in `whole` make a whole draft in one forward, the others one unit.
    """

    target: ForwardCost
    drafters: Mapping[str, ForwardCost] = field(default_factory=dict)
    retokenize: Curve = FREE
    whole: tuple[str, ...] = ()

    def plain(self, batch: int, context: float) -> float:
        """A round in which nothing is drafted."""
        return self.target.seconds(batch, batch, context)

    def spelling(self, drafts: float) -> float:
        """So many drafts of one step, beside all forwards."""
        return self.retokenize.at(drafts) if drafts else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostTable:
        """Reads what `as_dict` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        drafters = {str(name): ForwardCost.from_dict(found) for name, found in values["drafters"].items()}
        whole = tuple(str(name) for name in values.get("whole", ()))  # tables from before there were heads have none
        return cls(ForwardCost.from_dict(values["target"]), drafters, _curve(values["retokenize"]), whole)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The price of one step. `plain` is the seconds of the step without drafts, `extra[n]` those of n more rows,
    `forwards` one sequence's share of a drafter's forward if all draft, `draft` what a draft takes beside its rows and
    forwards. `price` is how many tokens a second is worth.
    """

    deciding: bool  # whether somebody decodes; a step that only reads prompts earns nothing and is not weighed
    batch: int
    context: int
    plain: float
    draft: float
    extra: tuple[float, ...]
    forwards: Mapping[str, float] = field(default_factory=dict)
    price: float = 0.0

    @property
    def row(self) -> float:
        """Seconds of one more row: a mean of the first few, for costs rise in stairs."""
        rows = min(4, len(self.extra) - 1)
        return self.extra[rows] / max(1, rows)

    def gain(self, survival: Sequence[float], token: float = 0.0, begin: float = 0.0) -> float:
        """Tokens that the best length brings beyond what its time is worth, if drafting takes `begin` seconds and
        `token` seconds a token; below 0 where none pays.
        """
        best, tokens = -1.0, 0.0
        for length, chance in enumerate(survival, 1):
            tokens += chance
            best = max(best, tokens - self.price * (self.extra[length] + self.draft + begin + length * token))
        return best

    def rounds(self, seconds: float) -> float:
        """Seconds as plain rounds of one sequence, whose share of a step they are."""
        return self.batch * seconds / self.plain

    def affords(self, rounds: float, token: float = 0.0) -> int:
        """Tokens that one sequence may draft, in `token` seconds each, and have verified for so many rounds of its own,
        if all draft as many.
        """
        longest = (len(self.extra) - 1) // self.batch
        costs = (self.extra[self.batch * n] / self.plain + self.rounds(n * token) for n in range(1, longest + 1))
        return next((n for n, cost in enumerate(costs) if cost > rounds), longest)


@dataclass(slots=True)
class StepCosts:
    """Prices of steps with drafts of up to `tokens` tokens, or of `most` together where so few take part that those are
    fewer; steps that are alike are worked out once.
    """

    table: CostTable
    tokens: int
    most: int = 0
    _known: dict[tuple[int, int, int], StepCost] = field(default_factory=dict, init=False)

    def of(self, rows: int, batch: int, context: float, deciding: bool, speedup: float) -> StepCost:
        """The price of a step that has `rows` rows of `batch` sequences, `context` tokens long on average, before any
        draft, where text is written `speedup` times as fast as plainly.
        """
        key = rows, batch, int(context) // BUCKET * BUCKET
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._work_out(*key)
        found = self._known[key]
        return replace(found, deciding=deciding, price=speedup * batch / found.plain)

    def _work_out(self, rows: int, batch: int, context: int) -> StepCost:
        table = self.table
        before = table.target.seconds(rows, batch, context)
        drafted = range(rows, rows + max(batch * self.tokens, self.most) + 1)
        extra = tuple(table.target.seconds(more, batch, context) - before for more in drafted)
        forwards = {name: cost.seconds(batch, batch, context) / batch for name, cost in table.drafters.items()}
        return StepCost(False, batch, context, table.plain(batch, context), table.spelling(1), extra, forwards)


def admit(survivals: Sequence[Sequence[float]], seconds: Callable[[int], float], price: float) -> list[int]:
    """How many positions of each sequence to verify: what maximizes expected tokens − price × seconds(positions).

    All rows of a step share one forward, so the best n positions are the n likeliest; `survivals[r]` never rises, so
    those are whole beginnings. `seconds(n)` is what n more rows cost; `price` is in tokens a second. Among equals the
    shortest.
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
    if not rows or not 0 <= rows[0] <= max(rows) <= MOST_ROWS:
        raise ValueError("a curve needs numbers of rows")
    if len(rows) != len(seconds) or not increasing or not sound:
        raise ValueError("a curve needs increasing rows and as many seconds")
    return Curve(rows, seconds)
