"""Metrics as numbers with names and labels, and how they are written: Prometheus' text format, or JSON.

Our own writer: the format is this one page, and a library's registry would keep a second set of counters beside the
engine's, with a lock for each. Knows the format (version 0.0.4); knows no metric.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
Number = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; `suffix` is what a histogram's lines add to the name."""

    value: Number
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        samples = [{"name": self.name + s.suffix, "labels": dict(s.labels), "value": s.value} for s in self.samples]
        return {"name": self.name, "type": self.kind, "help": self.help, "samples": samples}


class Histogram:
    """How often values fell below each of some bounds, and their sum."""

    def __init__(self, bounds: Sequence[Number]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: Number = 0

    def observe(self, value: Number, times: int = 1) -> None:
        """Adds a value, which a bound includes."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def samples(self, labels: Mapping[str, str]) -> list[Sample]:
        """Cumulated buckets, sum and count."""
        cumulated = list(accumulate(self.counts))
        ends = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        found = [Sample(n, {**labels, "le": end}, "_bucket") for end, n in zip(ends, cumulated, strict=True)]
        return [*found, Sample(self.sum, labels, "_sum"), Sample(cumulated[-1], labels, "_count")]


def to_text(families: Iterable[Family]) -> str:
    """What Prometheus scrapes."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterable[str]:
    said = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {said}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        yield f"{family.name}{sample.suffix}{{{labels}}} {sample.value!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
