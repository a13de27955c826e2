"""What a replayed step costs by one fixed cost table. The same recording can be priced by several tables.

Knows steps and tables; knows no policy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from codespec.bench.pair import Pair
from codespec.bench.tape import Step
from codespec.engine.pricing import table_of
from codespec.errors import ConfigError
from codespec.models.timing import Shape, measure
from codespec.speculation.cost_model import CostTable

BUDGET = 6.0  # seconds a sweep
LEISURE = 30.0  # seconds of sweeps: a machine that others share is fast and slow by turns


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of steps by a cost table."""

    table: CostTable

    def verify(self, rows: int, batch: int, context: float) -> float:
        """A target forward and the round around it."""
        return self.table.target.seconds(rows, batch, context)

    def draft(self, forwards: Sequence[tuple[int, int]], context: float) -> float:
        """A drafter's forwards, as (rows, sequences)."""
        return sum(
            cost.seconds(rows, batch, context) for cost in self.table.drafters.values() for rows, batch in forwards
        )

    def step(self, step: Step) -> float:
        """A whole step."""
        return (
            self.verify(step.rows, step.batch, step.context)
            + self.draft(step.forwards, step.context)
            + self.table.spelling(step.drafts)
        )


def read_costs(file: Path, shape: str) -> CostTable:
    """The table that an earlier run of the bench stored. ConfigError where there is none."""
    try:
        return CostTable.from_dict(json.loads(file.read_text(encoding="utf-8"))["tables"][shape]["costs"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} holds no costs of the shape {shape} ({error}): name a file of `codespec bench policy --json`."
        ) from error


def measure_costs(pair: Pair, leisure: float = LEISURE) -> CostTable:
    """A cost table from many more forwards than the engine's own start has time for: the medians of some seconds."""
    models = [pair.target, *pair.drafters.values()]
    taken: list[dict[Shape, list[float]]] = [{} for _ in models]
    began = time.perf_counter()
    while not taken[0] or time.perf_counter() - began < leisure:
        for found, visited in zip(taken, measure(models, BUDGET), strict=True):
            for shape, seconds in visited.items():
                found.setdefault(shape, []).append(seconds)
    times = [{shape: median(several) for shape, several in found.items()} for found in taken]
    return table_of(pair.target, pair.drafters, times)
