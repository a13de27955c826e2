"""A cost table that follows the rounds that really run: what a table measured at the first start, perhaps on a busy
machine, says of a forward is multiplied by what such forwards take now.

Knows a table and seconds; does not know what is drafted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from codespec.speculation.cost_model import CostTable, Curve, ForwardCost

STEP, LEAST_STEP = 0.5, 0.01  # how far the first and later forwards move a ratio's logarithm at most
SLOWER = 4.0  # forwards after which it is half as far
OFTEN = 32  # steps between two tables


@dataclass(slots=True)
class Ratio:
    """About the running median of what forwards take by what the table says, so that a process that waits for others
    now and then says nothing of costs; 1 until there are any.
    """

    middle: float = 1.0
    count: int = 0

    def add(self, ratio: float) -> None:
        """One forward."""
        step = max(LEAST_STEP, STEP / (1.0 + self.count / SLOWER))
        away = math.log(max(ratio, 1e-9) / self.middle)
        self.middle *= math.exp(min(step, max(-step, away)))
        self.count += 1


@dataclass(slots=True)
class RunningCosts:
    """`table` is what was measured at first; ratios are kept by the power of two of a verify's rows, and one for all
    that drafting models do.
    """

    table: CostTable
    _verify: dict[int, Ratio] = field(default_factory=dict)
    _draft: Ratio = field(default_factory=Ratio)
    _steps: int = 0

    def took(self, rows: int, verify: tuple[float, float], draft: tuple[float, float]) -> bool:
        """Takes one step: seconds as the table says and as they were, of a verify of so many rows and of the drafting
        models (0 for none). Whether there is a new table.
        """
        if verify[0] > 0.0:
            self._verify.setdefault(rows.bit_length(), Ratio()).add(verify[1] / verify[0])
        if draft[0] > 0.0:
            self._draft.add(draft[1] / draft[0])
        self._steps += 1
        return self._steps % OFTEN == 0

    def fitted(self) -> CostTable:
        """The table as costs are now. Numbers of rows that were not seen go as those between which they are."""
        target, table = self.table.target, self.table
        curves = tuple(
            Curve.fit({n: seconds * self._ratio(n) for n, seconds in zip(curve.rows, curve.seconds, strict=True)})
            for curve in target.curves
        )
        usual = self._ratio(1)
        draft = self._draft.middle if self._draft.count else usual
        return replace(
            table,
            target=ForwardCost(target.contexts, curves, _times(target.batches, usual)),
            drafters={name: _scaled(cost, draft) for name, cost in table.drafters.items()},
            retokenize=_times(table.retokenize, usual),
        )

    def _ratio(self, rows: int) -> float:
        """Of a verify of so many rows."""
        size, seen = rows.bit_length(), sorted(self._verify)
        below = max((each for each in seen if each <= size), default=None)
        above = min((each for each in seen if each >= size), default=None)
        if below is None or above is None or below == above:
            nearest = above if below is None else below
            return 1.0 if nearest is None else self._verify[nearest].middle
        share = (size - below) / (above - below)
        between = (1.0 - share) * math.log(self._verify[below].middle) + share * math.log(self._verify[above].middle)
        return math.exp(between)


def _scaled(cost: ForwardCost, ratio: float) -> ForwardCost:
    return ForwardCost(cost.contexts, tuple(_times(curve, ratio) for curve in cost.curves), _times(cost.batches, ratio))


def _times(curve: Curve, ratio: float) -> Curve:
    return Curve(curve.rows, tuple(seconds * ratio for seconds in curve.seconds))
