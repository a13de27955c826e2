"""`codespec bench quality` as one table, targets side by side. Formats its figures; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codespec.bench.quality.sites import PROJECT_KINDS
from codespec.bench.quality.summary import ALL, EXACT, FIRST_LINE, PASSED

TITLES = {EXACT: "exact", FIRST_LINE: "first line", PASSED: "passes"}
REQUESTS = {
    "editor": "as an editor requests it: ended by its shape, the last word before the cursor healed",
    "raw": "raw: ended by the target's own end tokens alone",
    "infilling": "by HumanEval-Infilling's rules: not healed, one line ends with it, all else at an end token",
}
SIDES = {
    "left": "from the left only",
    "psm": "both sides (prefix, suffix, middle)",
    "spm": "both sides (suffix, prefix, middle)",
    "suffix_first": "both sides (suffix first)",
}
MISSING = "–"


def report(found: Mapping[str, Any]) -> list[str]:
    """The report as lines."""
    targets = found["targets"]
    lines = [found["processor"], f"seed {found['seed']}, greedy, {REQUESTS[found['shape']]}"]
    lines += [_target(target) for target in targets]
    lines += [f"{target['name']}: {note}" for target in targets for note in target["notes"]]
    lines += [found["note"]] if found["note"] else []
    lines += _execution(found["execution"]) if found["execution"] else []
    lines += ["", "right of all sites (share, 95 % Wilson interval in %)", *_table(targets)]
    for difference in found["differences"]:
        lines += ["", f"{targets[0]['name']} against {difference['other']}, 95 % intervals over resampled texts:"]
        lines += [
            f"  {kind}, {TITLES[measure]}: {_difference(values)}"
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
    """A line for each kind and row; for each measure a column for each target."""
    measures = [measure for measure in TITLES if any(measure in row for _, _, row in _rows(targets[0]))]
    head = ["", "", "sites"]
    for measure in measures:
        head += [f"{TITLES[measure]}: {target['name']}" if len(targets) > 1 else TITLES[measure] for target in targets]
    lines = [head]
    for kind, row, counts in _rows(targets[0]):
        same = [target["rows"][kind][row] for target in targets]
        lines.append([kind, row, str(counts["sites"]), *(_share(one, m) for m in measures for one in same)])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'<' if column < 2 else '>'}{width}}}" for column, width in enumerate(widths))
    return [form.format(*line) for line in lines]


def _rows(target: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Every row of a target's figures; for held-out code in a single language only that language."""
    return [
        (kind, row, counts)
        for kind, rows in target["rows"].items()
        for row, counts in rows.items()
        if not (kind in PROJECT_KINDS and row == ALL and len(rows) == 2)
    ]


def _share(counts: Mapping[str, Any], measure: str) -> str:
    if measure not in counts:
        return MISSING
    low, high = counts["intervals"][measure]
    return f"{counts[measure]} ({counts[measure] / counts['sites']:.0%}, {100 * low:.0f}–{100 * high:.0f})"


def _difference(values: Mapping[str, Any]) -> str:
    share = values["share"]
    return (
        f"{100 * share['value']:+.1f} % [{100 * share['low']:+.1f}, {100 * share['high']:+.1f}], "
        f"{values['only_target']} sites right here only, {values['only_other']} there only"
    )
