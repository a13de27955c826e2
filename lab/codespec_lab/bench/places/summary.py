"""Summarize scored places: means with bootstrap intervals by language, and the paired differences of two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from codespec.errors import ConfigError
from codespec_lab.bench.report import format_percentiles, table
from codespec_lab.bench.statistics import Interval, bootstrap, interval, percentiles

ALL = "all"
SCORES = {  # name in the file: heading
    "exact": "line exact",
    "similarity": "edit similarity",
    "id_exact": "identifiers exact",
    "id_f1": "identifiers F1",
    "imports": "imports",
    "in_time": "text in time",
    "nothing": "nothing shown",
}
Row = Mapping[str, Any]


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of each language and of all places."""
    groups = {
        name: [row for row in rows if row["language"] == name] for name in {row["language"]: None for row in rows}
    }
    return {name: _group(group) for name, group in ({ALL: rows} | groups).items()}


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    first = percentiles([row["first_ms"] for row in rows if row["first_ms"] is not None])
    return {"places": len(rows), "first_ms": first} | {
        name: mean_interval([row[name] for row in rows if row.get(name) is not None]) for name in SCORES
    }


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean (`ratio`) with its 95 % interval; None without values."""
    return interval(fmean(values), bootstrap(values, fmean)) if values else None


def read_run(file: Path) -> dict[str, Any]:
    """Return the figures of an earlier run. Raises ConfigError."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if found["bench"] != "places" or not found["rows"]:
            raise ValueError("other figures")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} holds no figures of `codespec bench places` ({error}): name another file."
        ) from error
    return found


def compare(rows: Sequence[Row], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences from an earlier run at the places of both."""
    old = {row["place"]: row for row in before["rows"]}
    pairs = [(old[row["place"]], row) for row in rows if row["place"] in old]
    if not pairs:
        raise ConfigError("The run named by --against has no place in common with this one: give it the same seed.")
    found: dict[str, Any] = {"places": len(pairs)}
    for name in SCORES:
        both = [(a[name], b[name]) for a, b in pairs if a.get(name) is not None and b.get(name) is not None]
        moved = [after - before for before, after in both]
        counts = {"better": sum(value > 1e-9 for value in moved), "worse": sum(value < -1e-9 for value in moved)}
        found[name] = {**(mean_interval(moved) or {}), **counts} if moved else None
    return found


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    facts, settings = found["facts"], found["configuration"]
    machine = facts["machine"]
    kind = "held-out places" if settings["held_out"] else "places"
    lines = [
        f"{len(found['rows'])} of {settings['places']} {kind}, {facts['model']}, prompts of "
        f"{format_percentiles(found['prompt_tokens'])} tokens at 50, 95, 99 %",
        machine["processor"],
        "",
    ]
    heads = ["", "places", *SCORES.values(), "first text ms at 50, 95, 99 %"]
    rows = [
        [name, group["places"], *(_mean(group[score]) for score in SCORES), format_percentiles(group["first_ms"])]
        for name, group in found["summary"].items()
    ]
    lines += table([heads, *rows])
    lines += ["", *table([[head, _spread(found["summary"][ALL][name])] for name, head in SCORES.items()])]
    against = found["against"]
    if against:
        lines += ["", f"against {against['file']}, at {against['places']} places of both: difference, better, worse"]
        lines += table([[head, *_difference(against[name])] for name, head in SCORES.items()])
    return lines


def _mean(values: Interval | None) -> str:
    return f"{values['ratio']:.3f}" if values else ""


def _spread(values: Interval | None) -> str:
    return f"{values['ratio']:.3f} ({values['low']:.3f} to {values['high']:.3f})" if values else ""


def _difference(values: Mapping[str, Any] | None) -> list[object]:
    if values is None:
        return ["", "", ""]
    return [
        f"{values['ratio']:+.3f} ({values['low']:+.3f} to {values['high']:+.3f})",
        values["better"],
        values["worse"],
    ]
