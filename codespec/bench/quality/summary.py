"""From single completions to figures: how many of each row are right, and the difference of two targets with its
interval.

Knows sites and their outcomes; plain JSON values come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codespec.bench.quality.execution import ENDS, Ended
from codespec.bench.quality.sites import PROJECT_KINDS, GapSite
from codespec.bench.statistics import ratio_interval, wilson_interval

ALL = "all"
EXACT, FIRST_LINE, PASSED = "exact", "first_line", "passed"
MEASURES = (EXACT, FIRST_LINE, PASSED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome at one site; `ended` is how its program ended, if it was run."""

    exact: bool
    first_line: bool
    ended: Ended | None = None

    def holds(self, measure: str) -> bool | None:
        """Whether the completion is right by a measure; None where that was not measured."""
        if measure == PASSED:
            return None if self.ended is None else self.ended == "passed"
        return self.exact if measure == EXACT else self.first_line


def count_rows(sites: Sequence[GapSite], outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, Any]]]:
    """By kind and row: the number of sites, how many are right by each measure, Wilson's 95 % intervals of these
    shares, and how programs ended.
    """
    return {
        kind: {row: _counts([outcomes[number] for number in numbers]) for row, numbers in rows.items()}
        for kind, rows in _rows(sites).items()
    }


def differences(
    sites: Sequence[GapSite], ours: Sequence[Outcome], others: Sequence[Outcome]
) -> dict[str, dict[str, dict[str, Any]]]:
    """By kind and measure, over all rows: the sites that only one of two targets has right, and the difference of their
    shares with its 95 % interval over resampled texts.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, rows in _rows(sites).items():
        numbers = rows.get(ALL) or [number for row in rows.values() for number in row]
        for measure in MEASURES:
            pairs = [(ours[number].holds(measure), others[number].holds(measure)) for number in numbers]
            if all(a is not None and b is not None for a, b in pairs):
                sources = [sites[number].source for number in numbers]
                found.setdefault(kind, {})[measure] = _difference(sources, [(bool(a), bool(b)) for a, b in pairs])
    return found


def _difference(sources: Sequence[tuple[str, str]], pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    gained: Counter[tuple[str, str]] = Counter()
    size = Counter(sources)
    for source, (ours, other) in zip(sources, pairs, strict=True):
        gained[source] += ours - other
    interval = ratio_interval([gained[source] for source in size], [size[source] for source in size])
    assert interval is not None
    return {
        "only_target": pairs.count((True, False)),
        "only_other": pairs.count((False, True)),
        "share": {"value": round(interval.ratio, 4), "low": round(interval.low, 4), "high": round(interval.high, 4)},
    }


def _rows(sites: Sequence[GapSite]) -> Mapping[str, Mapping[str, list[int]]]:
    """The indices of the sites by kind and row; held-out code also has a row for all languages."""
    found: dict[str, dict[str, list[int]]] = {}
    for number, site in enumerate(sites):
        found.setdefault(site.kind, {}).setdefault(site.row, []).append(number)
    for kind in PROJECT_KINDS:
        if kind in found:
            found[kind][ALL] = [number for row in list(found[kind].values()) for number in row]
    return found


def _counts(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    given = list(outcomes)
    counts: dict[str, Any] = {"sites": len(given)}
    counts |= {EXACT: sum(one.exact for one in given), FIRST_LINE: sum(one.first_line for one in given)}
    ends = Counter(one.ended for one in given if one.ended is not None)
    if ends:
        counts[PASSED] = ends["passed"]
        counts["ends"] = {end: ends[end] for end in ENDS if ends[end]}
    counts["intervals"] = {
        measure: [round(bound, 4) for bound in wilson_interval(counts[measure], len(given))]
        for measure in MEASURES
        if measure in counts
    }
    return counts
