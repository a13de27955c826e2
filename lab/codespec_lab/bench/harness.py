"""Run a benchmark: find its scenario, print the report, and write the files of --json, --summary and --plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from codespec_lab.bench.flags import Bench
from codespec_lab.bench.plot import Chart, write_plot
from codespec_lab.bench.results import condensed, refuse_mismatches, write_json

Contestant = TypeVar("Contestant")
Figures = Mapping[str, Any]


def _none(found: Figures) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parts of a benchmark.

    run         turn the settings into figures (plain JSON values)
    report      format the figures as lines
    charts      the charts of the figures
    mismatches  name every text that differs from plain decoding and must not
    """

    run: Callable[[Any], dict[str, Any]]
    report: Callable[[Figures], list[str]]
    charts: Callable[[Figures], list[Chart]] = _none
    mismatches: Callable[[Figures], list[str]] = _none


def carry_out(bench: Bench, summary: Path | None, plot: Path | None) -> int:
    """Run a benchmark, print its report and write its files. Return 0, or raise MismatchError if a text differs."""
    scenario: Scenario = import_module(f"codespec_lab.bench.{bench.module}").SCENARIO
    json = None if bench.grows else bench.file
    return publish(scenario, scenario.run(bench), json=json, summary=summary, plot=plot)


def publish(
    scenario: Scenario, found: dict[str, Any], *, json: Path | None, summary: Path | None, plot: Path | None
) -> int:
    """Print the report and write the files. Return 0, or raise MismatchError if a text differs."""
    print("\n".join(scenario.report(found)))
    if json:
        write_json(json, found)
    if summary:
        write_json(summary, condensed(found))
    if plot:
        write_plot(plot, scenario.charts(found))
    refuse_mismatches(scenario.mismatches(found))
    return 0


def in_turn(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """Return the contestants in the order of a turn: another one begins each time, so that a busy minute of the machine
    affects all of them.
    """
    first = turn % max(1, len(contestants))
    return [*contestants[first:], *contestants[:first]]
