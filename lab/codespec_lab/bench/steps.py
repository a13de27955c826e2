"""An engine's recorded steps, their cost according to a cost table, and a wrapper that watches a policy.

The same recorded steps can be priced with several tables.
"""

from __future__ import annotations

import collections.abc
import time
from dataclasses import dataclass, field
from statistics import median

from codespec.speculation.cost_model import CostTable
from codespec.speculation.policy import Batch, DraftPlan, DraftPolicy, StepResults
from codespec.startup.timing import ForwardShape, measure, table_of
from codespec_lab.bench.pair import Pair

SWEEP_SECONDS = 6.0
ALL_SECONDS = 30.0  # of sweeps: the speed of a shared machine varies


@dataclass(slots=True)
class Step:
    """The work in a step: the target's rows, sequences and their mean length, the drafter's forwards as (rows,
    sequences), and the number of retokenized drafts. Prefill counts for the drafter but not for the target, whose
    prefill is the same under every policy.
    """

    rows: int = 0
    batch: int = 0
    context: float = 0.0
    forwards: list[tuple[int, int]] = field(default_factory=list)
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of steps in seconds, according to a cost table."""

    table: CostTable

    def verify(self, rows: int, batch: int, context: float) -> float:
        """Return the cost of a target forward and the round around it."""
        return self.table.target.seconds(rows, batch, context)

    def draft(self, forwards: collections.abc.Sequence[tuple[int, int]], context: float) -> float:
        """Return the cost of a drafter's forwards, given as (rows, sequences)."""
        return sum(
            cost.seconds(rows, batch, context) for cost in self.table.drafters.values() for rows, batch in forwards
        )

    def step(self, step: Step) -> float:
        """Return the cost of a whole step."""
        return (
            self.verify(step.rows, step.batch, step.context)
            + self.draft(step.forwards, step.context)
            + self.table.draft * step.drafts
        )


class WatchedPolicy(DraftPolicy):
    """Wraps a policy and passes its decisions on; subclasses record its rounds. What it learns is not kept."""

    def __init__(self, policy: DraftPolicy) -> None:
        self.name, self.policy = policy.name, policy

    def plan(self, batch: Batch) -> DraftPlan:
        """Return the policy's plan."""
        return self.policy.plan(batch)

    def observe(self, results: StepResults) -> None:
        """Leave out the times: recorded steps are priced with a table, and the time to repeat them is meaningless."""
        self.policy.observe(StepResults(results.rounds))

    def seconds(self, rows: float, batch: int = 1, context: float = 0) -> float:
        """Return the policy's cost."""
        return self.policy.seconds(rows, batch, context)


def measure_costs(pair: Pair, seconds: float | None = None) -> CostTable:
    """Return a cost table measured with many more forwards than an engine can afford at start: medians over sweeps of
    `seconds` (default ALL_SECONDS), at least one.
    """
    models = [pair.target, *pair.drafters.values()]
    found: list[dict[ForwardShape, list[float]]] = [{} for _ in models]
    end = time.perf_counter() + (ALL_SECONDS if seconds is None else seconds)
    while not found[0] or time.perf_counter() < end:
        for times, visited in zip(found, measure(models, SWEEP_SECONDS), strict=True):
            for shape, taken in visited.items():
                times.setdefault(shape, []).append(taken)
    medians = [{shape: median(several) for shape, several in times.items()} for times in found]
    return table_of(pair.target, pair.drafters, medians)
