"""`codespec check`: measure whether a target and a drafter work together, before any model is loaded.

`codespec.pair` makes the report. Does not import torch.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.cli.options import add_pair_options
from codespec.cli.parser import Parser
from codespec.errors import ConfigError, PairError
from codespec.store.choice import resolve_engine
from codespec.store.resolve import resolve

if TYPE_CHECKING:
    from codespec.pair.report import PairReport
    from codespec.pair.rows import Unit, Value
    from codespec.pair.sample import Sample

WIDTHS = (20, 19, 19, 7, 31)  # column widths of the table, separated by one space: 100 characters
SIZES = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
    parser: Parser = commands.add_parser(
        "check",
        help="check whether two models work together",
        description="Compares a target and a drafter and measures the cost of their tokenizers on your own files.",
    )
    add_pair_options(parser, parser)
    parser.add_argument(
        "--files", type=Path, nargs="+", metavar="FILE", help="text to measure on (default: source files here)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report and return 0. Raise PairError after it if the pair can't work."""
    named = {name: getattr(options, name) for name in ("model", "target", "drafter")}
    config = resolve_engine(named, options.config)
    if config.drafter == "none":
        raise ConfigError("The drafter is none, so there is no pair to check", "name one with --drafter")
    from codespec.pair.facts import read_facts
    from codespec.pair.report import check_pair

    target, drafter = (read_facts(resolve(name)) for name in (config.target, config.drafter))
    report = check_pair(target, drafter, choose_sample(options.files), config.mode, config.device)
    if options.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print("\n".join(render(report)))
    if report.problem:
        raise PairError(report.problem)
    return 0


def choose_sample(files: Sequence[Path] | None) -> Sample:
    """Return the named files, else the source files here.

    Without either, return standard library files that no shipped model was trained on.
    """
    from codespec.pair.sample import LEAST_BYTES, held_out_files, library_sample, named_sample, own_sample

    if files:
        return named_sample(files)
    own = own_sample(Path.cwd())
    if own.size >= LEAST_BYTES:
        return own
    return library_sample(held_out_files())


def render(report: PairReport) -> list[str]:
    """Return the report in lines of at most 100 columns, if no name is longer."""
    from codespec.pair.report import toml

    sample, criteria = report.sample, [row for row in report.rows if row.criterion is not None]
    missed = [row.label for row in criteria if not row.criterion]
    lines = [f"target   {report.pair.target.name}", f"drafter  {report.pair.drafter.name}"]
    count = "1 file" if len(sample.texts) == 1 else f"{len(sample.texts)} files"
    lines += [f"text     {count}, {sample.size / 1000:.0f} kB ({sample.source})", ""]
    lines += _table_line("", "target", "drafter", "", "")
    for row in report.rows:
        lines += _table_line(row.label, show(row.target, row.unit), show(row.drafter, row.unit), row.finding, row.why)
    usual = f"usual criteria: {len(criteria) - len(missed)} of {len(criteria)} hold"
    lines += ["", usual + (f" (not: {', '.join(missed)}); none is required" if missed else "")]
    lines.append(f"verdict: {report.verdict}")
    if report.settings:
        lines += ["", "suggested settings, as a file for --config:", "", toml(report.settings).rstrip()]
    return lines


def show(value: Value, unit: Unit) -> str:
    """Return a value as text for the table."""
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
    """Return one row of the table, with its cells wrapped to their columns."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    height = max(map(len, wrapped))
    columns = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    padded = zip(*columns, strict=True)
    return [" ".join(f"{c:<{w}}" for c, w in zip(line, WIDTHS, strict=True)).rstrip() for line in padded]
