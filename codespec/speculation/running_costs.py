"""A cost table that follows the actual rounds.

Scales the table from the first start, when the machine may have been busy, by the ratio of current to tabulated times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from codespec.speculation.cost_model import CostTable, Curve, ForwardCost

STEP, LEAST_STEP = 0.5, 0.01  # maximum change of a ratio's logarithm by the first and by late forwards
SLOWER = 4.0  # forwards after which that change is halved
OFTEN = 32  # steps between two new tables


@dataclass(slots=True)
class Ratio:
    """Approximate running median of measured over tabulated time; 1 without samples.

    A median ignores the occasional step in which the process has to wait for others.
    """

    middle: float = 1.0
    count: int = 0

    def add(self, ratio: float) -> None:
        """Add the ratio of one forward."""
        step = max(LEAST_STEP, STEP / (1.0 + self.count / SLOWER))
        away = math.log(max(ratio, 1e-9) / self.middle)
        self.middle *= math.exp(min(step, max(-step, away)))
        self.count += 1


@dataclass(slots=True)
class RunningCosts:
    """Ratios to the initial `table`.

    There is one for each power of two of a verify's rows, and one for all drafting models.
    """

    table: CostTable
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
        draft = self._draft.middle if self._draft.count else usual
        return replace(
            table,
            target=ForwardCost(target.contexts, curves, _times(target.batches, usual)),
            drafters={name: _scaled(cost, draft) for name, cost in table.drafters.items()},
            draft=table.draft * usual,
        )

    def _ratio(self, rows: int) -> float:
        """Return the ratio for a verify with this many rows."""
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
