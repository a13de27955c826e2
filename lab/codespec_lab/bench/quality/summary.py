"""Summarize completions: the number of correct ones in each row, and the difference between two targets with its
interval. Figures are plain JSON values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codespec_lab.bench.quality.execution import ENDS, Ended
from codespec_lab.bench.quality.sites import PROJECT_KINDS, GapSite
from codespec_lab.bench.statistics import ratio_interval, wilson_interval

ALL = "all"
EXACT, FIRST_LINE, PASSED, PREFIX = "exact", "first_line", "passed", "prefix"
MEASURES = (EXACT, FIRST_LINE, PASSED)  # true or false for a site


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome at one site. `ended` is how its program ended, if it was run. The first `right` of the answer's
    `chars` characters are correct.
    """

    exact: bool
    first_line: bool
    ended: Ended | None = None
    right: int = 0
    chars: int = 0

    def holds(self, measure: str) -> bool | None:
        """Return whether the completion is correct according to a measure; None if that was not measured."""
        if measure == PASSED:
            return None if self.ended is None else self.ended == "passed"
        return self.exact if measure == EXACT else self.first_line


def count_rows(sites: Sequence[GapSite], outcomes: Sequence[Outcome]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by kind and row: the number of sites, the number that are correct by each measure, Wilson's 95 %
    intervals of these shares, how programs ended, and the share of the answers' characters written before the first
    wrong one, with its 95 % interval over resampled texts.
    """
    return {
        kind: {
            row: _counts([sites[number].source for number in numbers], [outcomes[number] for number in numbers])
            for row, numbers in rows.items()
        }
        for kind, rows in _rows(sites).items()
    }


def differences(
    sites: Sequence[GapSite], ours: Sequence[Outcome], others: Sequence[Outcome]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by kind and measure over all rows: the difference of two targets' shares with its 95 % interval over
    resampled texts, and the number of sites that only one of them has right.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, rows in _rows(sites).items():
        numbers = rows.get(ALL) or [number for row in rows.values() for number in row]
        sources = [sites[number].source for number in numbers]
        for measure in MEASURES:
            pairs = [(ours[number].holds(measure), others[number].holds(measure)) for number in numbers]
            if all(a is not None and b is not None for a, b in pairs):
                found.setdefault(kind, {})[measure] = _difference(sources, [(bool(a), bool(b)) for a, b in pairs])
        chars = [ours[number].chars for number in numbers]
        if any(chars):
            gained = [ours[number].right - others[number].right for number in numbers]
            found.setdefault(kind, {})[PREFIX] = {"share": _share(sources, gained, chars)}
    return found


def _difference(sources: Sequence[tuple[str, str]], pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    return {
        "only_target": pairs.count((True, False)),
        "only_other": pairs.count((False, True)),
        "share": _share(sources, [ours - other for ours, other in pairs], [1] * len(pairs)),
    }


def _share(sources: Sequence[tuple[str, str]], above: Sequence[int], below: Sequence[int]) -> dict[str, float]:
    """Return the sum of `above` over that of `below`, with its interval; sites of one text are resampled together."""
    tops, bottoms = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for source, top, bottom in zip(sources, above, below, strict=True):
        tops[source] += top
        bottoms[source] += bottom
    interval = ratio_interval([tops[source] for source in bottoms], list(bottoms.values()))
    assert interval is not None
    return {"value": round(interval.ratio, 4), "low": round(interval.low, 4), "high": round(interval.high, 4)}


def _rows(sites: Sequence[GapSite]) -> Mapping[str, Mapping[str, list[int]]]:
    """Return the indices of the sites by kind and row; held-out code also has a row for all languages."""
    found: dict[str, dict[str, list[int]]] = {}
    for number, site in enumerate(sites):
        found.setdefault(site.kind, {}).setdefault(site.row, []).append(number)
    for kind in PROJECT_KINDS:
        if kind in found:
            found[kind][ALL] = [number for row in list(found[kind].values()) for number in row]
    return found


def _counts(sources: Sequence[tuple[str, str]], given: Sequence[Outcome]) -> dict[str, Any]:
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
    if any(one.chars for one in given):
        counts[PREFIX] = _share(sources, [one.right for one in given], [one.chars for one in given])
    return counts
