"""The report of `codespec check` as a table for a terminal. Knows rows and widths; measures nothing."""

from __future__ import annotations

import textwrap

from codespec.pair.report import PairReport
from codespec.pair.rows import Unit, Value
from codespec.pair.settings import toml

WIDTHS = (20, 19, 19, 7, 31)  # with a space between: 100 columns
SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def render(report: PairReport) -> list[str]:
    """The report in lines of at most 100 columns, where no name is longer."""
    sample, criteria = report.sample, [row for row in report.rows if row.criterion is not None]
    missed = [row.label for row in criteria if not row.criterion]
    lines = [f"target   {report.pair.target.name}", f"drafter  {report.pair.drafter.name}"]
    count = "1 file" if len(sample.texts) == 1 else f"{len(sample.texts)} files"
    lines += [f"text     {count}, {sample.size / 1000:.0f} kB ({sample.source})", ""]
    lines += _table_line("", "target", "drafter", "", "")
    for row in report.rows:
        lines += _table_line(row.label, show(row.target, row.unit), show(row.drafter, row.unit), row.finding, row.why)
    usual = f"usual criteria: {len(criteria) - len(missed)} of {len(criteria)} hold"
    lines += ["", usual + (f" (not: {', '.join(missed)}); none is demanded" if missed else "")]
    lines.append(f"verdict: {report.verdict}")
    if report.settings:
        lines += ["", "settings to begin with, as a file for --config:", "", toml(report.settings).rstrip()]
    return lines


def show(value: Value, unit: Unit) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, str):
        return value
    formats = {"share": f"{100 * value:.1f} %", "times": f"{value:.1f} ×", "bytes": f"{value:.2f}"}
    return formats.get(unit) or (_size(value) if unit == "size" else f"{value:,}")


def _size(count: float) -> str:
    for size, name in SIZES:
        if count >= size:
            return f"{count / size:.1f} {name}"
    return f"{count:.0f}"


def _table_line(*cells: str) -> list[str]:
    """One row of the table, its cells wrapped to their columns."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    height = max(map(len, wrapped))
    columns = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    padded = zip(*columns, strict=True)
    return [" ".join(f"{c:<{w}}" for c, w in zip(line, WIDTHS, strict=True)).rstrip() for line in padded]
