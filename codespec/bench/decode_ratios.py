"""How many times as fast one contestant is as another: the median over works that both decoded, with its spread.

A ratio is taken within one repeat of one work, where both had the same minute of the machine. Knows records.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from codespec.bench.bootstrap import RESAMPLES, SEED

Unit = tuple[int, int]  # repeat, number of the work
Record = Mapping[str, Any]
Pace = Callable[[Record], float | None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median over `works`, each the median of its `repeats`; `low` to `high` is its 95 % interval over drawn works,
    and of a single work the spread of its repeats.
    """

    ratio: float
    low: float
    high: float
    works: int
    repeats: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def pace(record: Record) -> float | None:
    """Seconds a token behind the first ones; None where there is no such token."""
    return seconds_behind_first(record) / record["tokens"] if record["tokens"] else None


def predicted_pace(record: Record) -> float | None:
    """The same by the cost table of the pass."""
    return record["predicted"] / record["tokens"] if record["tokens"] else None


def seconds_behind_first(record: Record) -> float:
    """Seconds of decoding."""
    return float(record["seconds"] - record["first_seconds"])


def compare(mine: Mapping[Unit, Record], other: Mapping[Unit, Record], measure: Pace = pace) -> Ratio | None:
    """How many times as fast the first is; None where they have no work in common."""
    by_work: dict[int, list[float]] = {}
    repeats = set()
    for unit in mine.keys() & other.keys():
        own, others = measure(mine[unit]), measure(other[unit])
        if own and others:
            repeats.add(unit[0])
            by_work.setdefault(unit[1], []).append(others / own)
    if not by_work:
        return None
    ratios = [statistics.median(by_work[work]) for work in sorted(by_work)]
    first = next(iter(by_work.values()))
    low, high = _interval(ratios) if len(ratios) > 1 else (min(first), max(first))
    return Ratio(statistics.median(ratios), low, high, len(ratios), len(repeats))


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    dice = random.Random(SEED)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
