"""Summarize the cases of `codespec bench edits`: quality and times by their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from codespec_lab.bench.edits.recordings import WIDTH
from codespec_lab.bench.report import format_load, format_ratio, table
from codespec_lab.bench.statistics import bootstrap, interval, percentiles

Row = Mapping[str, Any]
FAULTS = {"reverts": "reverts", "blank": "blank-line edits", "markers": "markers"}


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of each kind of cases and of all."""
    kinds = {name: [row for row in rows if row["kind"] == name] for name in {row["kind"]: None for row in rows}}
    return {name: _group(group) for name, group in {**kinds, "all": list(rows)}.items()}


def _group(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of some cases.

    `delta`, `exact` and `shown` are of the cases that expect an edit, `quiet` is the share of the silent ones in which
    nothing is shown. Cases whose window cuts an edit count for times and faults only.
    """
    wanted, silent = [row for row in rows if row["delta"] is not None], [row for row in rows if row["silent"]]
    edits, none = [row for row in rows if row["shown"]], [row for row in rows if not row["shown"]]
    found = {
        "cases": len(rows),
        "wanted": len(wanted),
        "silent": len(silent),
        "delta": _mean([row["delta"] for row in wanted]),
        "exact": _mean([row["exact"] for row in wanted]),
        "shown": _mean([float(row["shown"]) for row in wanted]),
        "quiet": _mean([float(not row["shown"]) for row in silent]),
        **{name: int(sum(row[name] for row in rows)) for name in FAULTS},
    }
    for name, group in (("edit", edits), ("no_edit", none)):
        found[f"{name}_ms"] = percentiles([row["total_ms"] for row in group])
        found[f"{name}_first_ms"] = percentiles([row["first_ms"] for row in group if row["first_ms"] is not None])
        rounds = sum(row["rounds"] for row in group)
        found[f"{name}_rounds"] = rounds / len(group) if group else None
        found[f"{name}_tokens_a_round"] = sum(row["committed"] for row in group) / rounds if rounds else None
    return found | {"llama_cpp": _against([row for row in rows if row.get("llama_cpp")])}


def _against(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return how long llama-server took for the same prompts, relative to codespec, with each n-gram setting."""
    settings = rows[0]["llama_cpp"] if rows else {}
    found = {}
    for name in settings:
        pairs = [(row["llama_cpp"][name]["ms"], row["total_ms"]) for row in rows]
        equal = sum(row["llama_cpp"][name]["answer"] == row["answer"] for row in rows)
        ratio = interval(_ratio(pairs), bootstrap(pairs, _ratio))
        found[name] = {"times": ratio, "ms": percentiles([theirs for theirs, _ in pairs]), "equal_answers": equal}
    return found or None


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(theirs for theirs, _ in pairs) / sum(ours for _, ours in pairs)


def _mean(values: Sequence[float]) -> dict[str, float] | None:
    return interval(fmean(values), bootstrap(values, fmean)) if values else None


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    facts, configuration, groups = found["facts"], found["configuration"], found["summary"]
    machine, every = facts["machine"], groups["all"]
    drafts = "" if configuration["speculate"] else ", without speculation"
    lines = [
        f"{len(found['rows'])} of {configuration['cases']} cases, {facts['model']}, format {facts['edit_format']}"
        + drafts,
        f"{machine['processor']}, {format_load(machine)}",
        "",
    ]
    quality = [["", "cases", "deltaChrF", "exact", "shown", "quiet", *FAULTS.values()]]
    for name, group in groups.items():
        quality.append([name, group["cases"], *_quality(group), *(group[fault] for fault in FAULTS)])
    times = [["", "ms at 50, 95 %", "first hunk ms at 50 %", "rounds", "tokens a round"]]
    for name, label in (("edit", "edit"), ("no_edit", "no edit")):
        spent = [_ms(every[f"{name}_ms"], "p50", "p95"), _ms(every[f"{name}_first_ms"], "p50")]
        times.append([label, *spent, _number(every[f"{name}_rounds"]), _number(every[f"{name}_tokens_a_round"])])
    lines += [*table(quality), "", *table(times)]
    for name, theirs in (every["llama_cpp"] or {}).items():
        ratio, ms = format_ratio(theirs["times"], 2), _ms(theirs["ms"], "p50", "p95")
        lines.append(f"llama-server, {name}: {ratio} times as long, {ms} ms, {theirs['equal_answers']} equal answers")
    for name, kinds in found.get("replays", {}).items():
        for kind, figures in kinds.items():
            lines.append(
                f"recorded answers in {name}, {kind}: {figures['tokens_a_round']:.1f} tokens a round in drafts of "
                f"{WIDTH}, {figures['answers']} answers"
            )
    return lines


def _quality(group: Mapping[str, Any]) -> list[str]:
    delta, *shares = (group[name] for name in ("delta", "exact", "shown", "quiet"))
    written = f"{delta['ratio']:.1f} ({delta['low']:.1f}–{delta['high']:.1f})" if delta else ""
    return [written, *(f"{share['ratio']:.0%}" if share else "" for share in shares)]


def _ms(values: Mapping[str, float], *names: str) -> str:
    return " ".join(f"{values[name]:.0f}" for name in names) if values else "none"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
