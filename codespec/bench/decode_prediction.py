"""The seconds that a cost table gives the steps that were played: their distance to the clock is what the table leaves
out of a round. Knows counts and tables; knows no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from codespec.bench.peers.contest import PlayedStep
from codespec.bench.pricing import Prices
from codespec.bench.tape import Step
from codespec.speculation.cost_model import CostTable


def predicted_seconds(steps: Sequence[PlayedStep], table: CostTable) -> float:
    """The cost of all steps by the table."""
    prices = Prices(table)
    return sum(prices.step(_priced(step, table)) for step in steps)


def _priced(step: PlayedStep, table: CostTable) -> Step:
    """A step as price lists know it."""
    units = [played.units for played in step.rounds if played.source in table.drafters]
    forwards = [(n, n) for turn in range(max(units, default=0)) if (n := sum(unit > turn for unit in units))]
    rows = sum(1 + played.drafted for played in step.rounds)
    drafts = sum(bool(played.source) for played in step.rounds)
    return Step(rows, max(1, len(step.rounds)), step.context, forwards, drafts)
