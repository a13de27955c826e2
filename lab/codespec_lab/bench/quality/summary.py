"""Summarize completions: the number of correct ones in each row, and the difference between two targets with its
interval. Figures are plain JSON values, which the report shows as one table, targets side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codespec_lab.bench.quality.execution import ENDS, Ended
from codespec_lab.bench.quality.sites import GapSite
from codespec_lab.bench.report import table
from codespec_lab.bench.settings import PROJECT_KINDS
from codespec_lab.bench.statistics import ratio_interval, wilson_interval

ALL = "all"
EXACT, FIRST_LINE, PASSED, PREFIX = "exact", "first_line", "passed", "prefix"
MEASURES = (EXACT, FIRST_LINE, PASSED)  # true or false for a site


TITLES = {EXACT: "exact", FIRST_LINE: "first line", PREFIX: "characters", PASSED: "passes"}
REQUESTS = {
    "editor": "as an editor requests it: ended by its shape, the last word before the cursor healed",
    "infilling": "by HumanEval-Infilling's rules: not healed, one line ends with it, all else at an end token",
}
SIDES = {
    "left": "from the left only",
    "psm": "both sides (prefix, suffix, middle)",
    "spm": "both sides (suffix, prefix, middle)",
    "suffix_first": "both sides (suffix first)",
}
MISSING = "–"


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
    found = ratio_interval([tops[source] for source in bottoms], list(bottoms.values()))
    assert found is not None
    return {name: round(found[key], 4) for name, key in (("value", "ratio"), ("low", "low"), ("high", "high"))}


def _rows(sites: Sequence[GapSite]) -> Mapping[str, Mapping[str, list[int]]]:
    """Return the indices of the sites by kind and row; held-out code also has a row for all languages."""
    found: dict[str, dict[str, list[int]]] = {}
    for number, site in enumerate(sites):
        found.setdefault(site.kind, {}).setdefault(site.row, []).append(number)
    for kind in PROJECT_KINDS:
        if kind in found:
            found[kind][ALL] = [number for row in list(found[kind].values()) for number in row]
    return found


def _counts(sources: Sequence[tuple[str, str]], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    counts: dict[str, Any] = {"sites": len(outcomes)}
    counts |= {
        EXACT: sum(outcome.exact for outcome in outcomes),
        FIRST_LINE: sum(outcome.first_line for outcome in outcomes),
    }
    ends = Counter(outcome.ended for outcome in outcomes if outcome.ended is not None)
    if ends:
        counts[PASSED] = ends["passed"]
        counts["ends"] = {end: ends[end] for end in ENDS if ends[end]}
    counts["intervals"] = {
        measure: [round(bound, 4) for bound in wilson_interval(counts[measure], len(outcomes))]
        for measure in MEASURES
        if measure in counts
    }
    if any(outcome.chars for outcome in outcomes):
        counts[PREFIX] = _share(
            sources, [outcome.right for outcome in outcomes], [outcome.chars for outcome in outcomes]
        )
    return counts


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    targets = found["targets"]
    lines = [found["processor"], f"seed {found['seed']}, greedy, {REQUESTS[found['shape']]}"]
    lines += [_target(target) for target in targets]
    lines += [f"{target['name']}: {note}" for target in targets for note in target["notes"]]
    lines += [found["note"]] if found["note"] else []
    lines += _execution(found["execution"]) if found["execution"] else []
    lines += ["", "right of all sites (share, 95 % interval in %: Wilson's; of characters over resampled texts)"]
    lines += _table(targets)
    for difference in found["differences"]:
        lines += ["", f"{difference['target']} against {difference['other']}, 95 % intervals over resampled texts:"]
        lines += [
            f"  {kind}, {TITLES[measure]}: {_difference_text(values)}"
            for kind, measures in difference["kinds"].items()
            for measure, values in measures.items()
        ]
    return lines


def _target(target: Mapping[str, Any]) -> str:
    parts = [f"{target['parameters'] / 1e6:.1f} M", target["dtype"], target["sha256"][:8]]
    return f"{target['name']} ({', '.join(filter(None, parts))}): {SIDES[target['sides']]}"


def _execution(execution: Mapping[str, Any]) -> list[str]:
    memory = execution["memory_bytes"] / 2**30
    limits = f"{execution['cpu_seconds']} s of CPU, {execution['wall_seconds']:.0f} s in all, {memory:.0f} GB"
    network = "network cut" if execution["network"] == "cut" else "network NOT cut: this system does not let us"
    processes = "" if execution["processes"] == "none of its own" else "; new processes NOT stopped: you are root"
    own = f"{execution['own_solutions_passed']} of {execution['own_solutions']} problems' own solutions pass"
    return [f"each program in a process of its own, limits {limits}, {network}{processes}; {own}"]


def _table(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each kind, row and target, with a column for each measure."""
    measures = [measure for measure in TITLES if any(measure in row for _, _, row in _shown_rows(targets[0]))]
    lines = [["", "", *([""] if len(targets) > 1 else []), "sites", *(TITLES[measure] for measure in measures)]]
    for kind, row, _ in _shown_rows(targets[0]):
        for target in targets:
            counts = target["rows"].get(kind, {}).get(row)
            if counts is not None:
                name = [target["name"]] if len(targets) > 1 else []
                figures = [_figure(counts, measure) for measure in measures]
                lines.append([kind, row, *name, str(counts["sites"]), *figures])
    return table(lines, left=3 if len(targets) > 1 else 2)


def _shown_rows(target: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return every row of a target's figures; held-out code in a single language has no row for all languages."""
    return [
        (kind, row, counts)
        for kind, rows in target["rows"].items()
        for row, counts in rows.items()
        if not (kind in PROJECT_KINDS and row == ALL and len(rows) == 2)
    ]


def _figure(counts: Mapping[str, Any], measure: str) -> str:
    if measure not in counts:
        return MISSING
    if measure == PREFIX:
        share = counts[PREFIX]
        return f"{share['value']:.0%} ({100 * share['low']:.0f}–{100 * share['high']:.0f})"
    low, high = counts["intervals"][measure]
    return f"{counts[measure]} ({counts[measure] / counts['sites']:.0%}, {100 * low:.0f}–{100 * high:.0f})"


def _difference_text(values: Mapping[str, Any]) -> str:
    share = values["share"]
    text = f"{100 * share['value']:+.1f} % [{100 * share['low']:+.1f}, {100 * share['high']:+.1f}]"
    if "only_target" not in values:
        return text
    return f"{text}, {values['only_target']} sites right here only, {values['only_other']} there only"
