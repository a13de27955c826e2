"""What holds for all sequences of a step: what its rows cost, and what time is worth. Knows seconds; knows no text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from codespec.control.costs import CostTable
from codespec.sequence import Candidates


@dataclass(frozen=True, slots=True)
class Step:
    """`extra[n]` is the seconds that n more rows cost, up to those of the longest drafts of all; `plain` those of the
    step without any. One sequence's share are `spelling`, what drafts cost beside forwards, among as many as usually
    draft, and `forwards`, those of the drafters, if all do. `price` is the tokens a second is worth.
    """

    deciding: bool  # somebody decodes; a step that only reads prompts earns nothing and is not weighed
    batch: int
    context: int
    plain: float
    spelling: float
    price: float
    extra: tuple[float, ...]
    forwards: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, costs: CostTable, rows: int, batch: int, context: int, tokens: int) -> Step:
        """A step of so many rows before any draft, of which each sequence may have `tokens` more: what is the same in
        all such steps.
        """
        before = costs.target.seconds(rows, batch, context)
        most = range(rows, rows + batch * tokens + 1)
        extra = tuple(costs.target.seconds(more, batch, context) - before for more in most)
        forwards = {name: cost.seconds(batch, batch, context) / batch for name, cost in costs.drafters.items()}
        return cls(False, batch, context, costs.plain(batch, context), 0.0, 0.0, extra, forwards)

    @property
    def row(self) -> float:
        """Seconds of one more row: a mean of the first, for costs rise in stairs."""
        rows = min(4, len(self.extra) - 1)
        return self.extra[rows] / max(1, rows)

    def gain(self, survivals: Sequence[float], unit: float = 0.0) -> float:
        """Tokens that the best length brings beyond what its time is worth, drafting a token in `unit` seconds; below 0
        where none pays.
        """
        best, tokens = -1.0, 0.0
        for length, survival in enumerate(survivals, 1):
            tokens += survival
            value = tokens - self.price * (self.extra[length] + self.spelling + length * unit)
            if value > best:
                best = value
        return best

    @property
    def handling(self) -> float:
        """What a draft takes whatever its length, in plain rounds of one sequence."""
        return self.own_rounds(self.spelling)

    def own_rounds(self, seconds: float) -> float:
        """Seconds in plain rounds of one sequence, whose share of a step they are."""
        return self.batch * seconds / self.plain

    def affords(self, rounds: float, unit: float = 0.0) -> int:
        """Tokens that one sequence may draft, `unit` seconds each, and have verified for so many plain rounds of its
        own, if all draft as many.
        """
        longest = (len(self.extra) - 1) // self.batch
        costs = (self.extra[self.batch * n] / self.plain + self.own_rounds(n * unit) for n in range(1, longest + 1))
        return next((n for n, cost in enumerate(costs) if cost > rounds), longest)


@dataclass(slots=True)
class Steps:
    """Steps of drafts up to `tokens` long; those that are alike are surveyed once."""

    costs: CostTable
    tokens: int
    _known: dict[tuple[int, int, int], Step] = field(default_factory=dict, init=False)

    def of(self, rows: int, batch: int, context: int) -> Step:
        """As `Step.of`."""
        if len(self._known) > 512:
            self._known.clear()
        if (rows, batch, context) not in self._known:
            self._known[rows, batch, context] = Step.of(self.costs, rows, batch, context, self.tokens)
        return self._known[rows, batch, context]


def drafting(costs: CostTable, candidates: Collection[Candidates], context: int) -> tuple[float, int]:
    """What the drafts of a step took, in seconds, and how many there were."""
    drafts = sum(bool(c.source) for c in candidates)
    seconds = costs.spelling(drafts)
    for source, cost in costs.drafters.items():
        units = [c.units for c in candidates if c.source == source]
        if units:
            seconds += max(units) * cost.seconds(len(units), len(units), context)
    return seconds, drafts
