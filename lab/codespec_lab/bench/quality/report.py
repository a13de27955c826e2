"""Format the figures of `codespec bench quality` as one table, targets side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codespec_lab.bench.quality.sites import PROJECT_KINDS
from codespec_lab.bench.quality.summary import ALL, EXACT, FIRST_LINE, PASSED, PREFIX

TITLES = {EXACT: "exact", FIRST_LINE: "first line", PREFIX: "characters", PASSED: "passes"}
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
    """Return a line for each kind, row and target, with a column for each measure."""
    measures = [measure for measure in TITLES if any(measure in row for _, _, row in _rows(targets[0]))]
    lines = [["", "", *([""] if len(targets) > 1 else []), "sites", *(TITLES[measure] for measure in measures)]]
    for kind, row, _ in _rows(targets[0]):
        for target in targets:
            counts = target["rows"].get(kind, {}).get(row)
            if counts is not None:
                name = [target["name"]] if len(targets) > 1 else []
                figures = [_figure(counts, measure) for measure in measures]
                lines.append([kind, row, *name, str(counts["sites"]), *figures])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    names = len(widths) - len(measures) - 1
    form = "  ".join(f"{{:{'<' if column < names else '>'}{width}}}" for column, width in enumerate(widths))
    return [form.format(*line) for line in lines]


def _rows(target: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
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


def _difference(values: Mapping[str, Any]) -> str:
    share = values["share"]
    text = f"{100 * share['value']:+.1f} % [{100 * share['low']:+.1f}, {100 * share['high']:+.1f}]"
    if "only_target" not in values:
        return text
    return f"{text}, {values['only_target']} sites right here only, {values['only_other']} there only"
