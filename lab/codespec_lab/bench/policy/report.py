"""Format the figures of `codespec bench policy` as tables, verdicts and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec_lab.bench.plot import Bar, Chart
from codespec_lab.bench.policy.summary import class_lines
from codespec_lab.bench.report import bounds, format_ratio, section_title, verdict_lines

RULES = ("plus2minus1", "confidence:0.4", "ds4-80")
LEARNERS = ("cost fresh", "cost learned", "cost+syntax fresh", "cost+syntax learned")
CLASSES = 8


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    prompts = found["prompts"]
    lines = [f"{prompts['count']} places in {prompts['projects']} projects, {prompts['tokens']} tokens; "]
    lines[0] += ", ".join(f"{name} {count}" for name, count in prompts["by_language"].items())
    lines += [found["processor"], *([found["note"]] if found["note"] else [])]
    for shape, section in found["tables"].items():
        lines += _section(shape, section)
    return lines


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return charts of the speed by policy for each cost table and batch, and of each class's cost vs the oracle."""
    drawn = []
    for shape, section in found["tables"].items():
        drawn += [_speeds(shape, batch, summary) for batch, summary in section["batch"].items()]
        drawn.append(_classes(shape, section["batch"]["1"]))
    return drawn


def chosen_rows(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the policies to show; the JSON has all fixed lengths."""
    return ("off", summary["best_fixed"], summary["best_lookup"], *RULES, *LEARNERS, "oracle")


def _section(shape: str, section: Mapping[str, Any]) -> list[str]:
    lines = ["", section_title(_size(shape))]
    for batch, summary in section["batch"].items():
        lines += ["", f"modelled, batch {batch}:", *_table(summary)]
        lines += [
            f"  {name}: {format_ratio(ratio, 3, 'nothing to compare')}; first rounds "
            f"{format_ratio(summary['first_rounds'][name], 3)}"
            for name, ratio in summary["speed"].items()
        ]
    lines += ["", "by class (batch 1):"]
    for name in (section["batch"]["1"]["best_fixed"], "cost+syntax learned"):
        lines += [f"  {name} {line}" for line in class_lines(section["batch"]["1"], name)]
    unguessable = ", ".join(f"{name} {ratio:.3f}" for name, ratio in section["unguessable"].items() if name != "off")
    lines += ["", f"drafts of another prompt (unguessable), times as fast as off: {unguessable}"]
    lines += _measured(section.get("measured"))
    return [*lines, "", *verdict_lines(section["verdicts"])]


def _table(summary: Mapping[str, Any]) -> list[str]:
    head = ("policy", "ms/token", "× off", "× fixed", "rounds", "drafted", "accepted", "rejected")
    lines = ["{:22}{:>9}{:>8}{:>9}{:>8}{:>9}{:>10}{:>10}".format(*head)]
    for name in chosen_rows(summary):
        line = summary["policies"][name]
        ratios = f"{line['ms_per_token']:9.3f}{line['times_off']['ratio']:8.2f}{line['times_best_fixed']['ratio']:9.2f}"
        counts = f"{line['rounds']:8}{line['drafted']:9}{line['accepted']:10}{line['rejected']:10}"
        lines.append(f"{name:22}{ratios}{counts}")
    return lines


def _measured(measured: Mapping[str, Any] | None) -> list[str]:
    if not measured:
        return []
    lines = ["", f"by the clock, {measured['prompts']} places, batch 1:"]
    lines += [f"  NOT EQUAL to plain: {where}" for where in measured["differing"]]
    for name, line in measured["policies"].items():
        lines.append(
            f"  {name:22}{line['tokens_per_second']:8.1f} tokens/s  {line['times_off']:.2f} × off  "
            f"rounds as replayed {line['rounds_as_replayed']:.0%}"
        )
    for name, sign in measured["signs"].items():
        agree = "agree" if sign["agree"] else "DISAGREE"
        lines.append(f"  {name}: modelled {sign['modelled']:.3f}, measured {sign['measured']:.3f}: {agree} in sign")
    return lines


def _speeds(shape: str, batch: str, summary: Mapping[str, Any]) -> Chart:
    bars = []
    for name in chosen_rows(summary):
        times = summary["policies"][name]["times_off"]
        kind = "best" if name.startswith("cost") else "plain" if name in ("off", "oracle") else "bar"
        bars.append(Bar(name, times["ratio"], kind, bounds(times)))
    title = f"Speed against plain decoding: target as large as {_size(shape)}, batch {batch}"
    return Chart(title, "modelled cost of recorded rounds; 95 % bootstrap intervals over prompts", bars, line=1.0)


def _classes(shape: str, summary: Mapping[str, Any]) -> Chart:
    classes = list(summary["by_class"]["cost+syntax learned"].items())[:CLASSES]
    bars = [
        Bar(context, values["times_oracle"], "bar", note=f"{values['times_oracle']:.2f}  ({_waste(values)})")
        for context, values in classes
    ]
    title = f"Cost against the oracle length by class: target as large as {_size(shape)}"
    return Chart(title, "cost+syntax learned elsewhere; rejected and missed tokens a round in brackets", bars, line=1.0)


def _waste(values: Mapping[str, Any]) -> str:
    rounds = max(1, values["rounds"])
    return f"{values['rejected'] / rounds:.1f} rejected, {values['missed'] / rounds:.1f} missed"


def _size(shape: str) -> str:
    return "it is" if shape == "own" else shape
