"""Format the figures of `codespec bench prediction` as a table, verdicts and a chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec_lab.bench.plot import Bar, Chart
from codespec_lab.bench.prediction.run import LEAST_FASTER, LEAST_USELESS, RIGHT, USELESS
from codespec_lab.bench.report import bounds, format_load, format_ratio, verdict_lines


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines; ratios are medians over passes, with the minimum and maximum."""
    settings, machine, off = found["settings"], found["machine"], found["off"]
    files = f"{len(settings['files'])} files of {settings['lines']} lines, {settings['repeats']} times"
    lines = [
        f"{settings['target']}, {settings['dtype']}, {settings['mode']}; {files}; {format_load(machine)}",
        machine["processor"],
        *([found["note"]] if found["note"] else []),
        "",
        f"{'prediction':16}{'ms a token':>12}{'tokens a round':>16}  × off (least–most)",
        f"{'off':16}{off['token_ms']:12.2f}{1:16.1f}",
    ]
    for name, cell in found["cells"].items():
        start = f"{name:16}{cell['token_ms']:12.2f}{cell['tokens_a_round']:16.1f}"
        lines.append(f"{start}  {format_ratio(cell['faster'], 2)}{_accepted(cell['by_source'])}")
    return [*lines, "", *verdict_lines(_verdicts(found["cells"]))]


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return a chart of the speed-ups by prediction."""
    bars = [
        Bar(name, cell["faster"]["ratio"], "best" if name == RIGHT else "plain", bounds(cell["faster"]))
        for name, cell in found["cells"].items()
    ]
    title = "A file written again with five small edits, by what the client predicted"
    return [Chart(title, "times as fast as without speculation; median, least and most", bars, line=1.0)]


def _accepted(sources: Mapping[str, Mapping[str, int]]) -> str:
    told = (f"{name} {counts['accepted']} of {counts['drafted']}" for name, counts in sorted(sources.items()))
    return "".join(f"; {each}" for each in told)


def _verdicts(cells: Mapping[str, Any]) -> dict[str, bool]:
    return {
        f"the old file as prediction: {LEAST_FASTER:g} × off": cells[RIGHT]["faster"]["ratio"] >= LEAST_FASTER,
        f"another file: {LEAST_USELESS:g} × off": cells[USELESS]["faster"]["ratio"] >= LEAST_USELESS,
    }
