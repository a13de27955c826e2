"""Summarize the records of `codespec bench decode` (speeds, ratios with intervals, acceptance), as tables.

A ratio compares two contestants on one repeat of one workload, where machine conditions were the same for both. Figures
are plain JSON values.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from codespec_lab.bench.decode.codespec_engine import FAMILY, OFF, ON
from codespec_lab.bench.report import format_ratio, table
from codespec_lab.bench.sites import KINDS, PROJECTS, PROMPTS
from codespec_lab.bench.statistics import bootstrap, interval

ALL = "all"
Unit = tuple[int, int]  # repeat, number of the workload
Record = Mapping[str, Any]
Pace = Callable[[Record], float | None]
TITLES = {PROMPTS: "of the prompts file", PROJECTS: "of held-out projects", ALL: "of all kinds"}
WHO = (
    "× is the median over prompts (several at once: over batches of prompts) of ratios taken in turn, with its 95 % "
    "bootstrap interval",
    "several at once: codespec is timed while its batch is full, others from a batch's first token to its last text's "
    "end; contestants that take one prompt only are left out",
    "equal are texts that plain decoding writes in the same number format; other programs' formats are compared with "
    "codespec in a float format",
)


@dataclass(slots=True)
class CellRecords:
    """All records of a cell, by contestant and unit."""

    sampling: str
    concurrency: int
    repeats: int = 0
    records: dict[str, dict[Unit, Record]] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> dict[Unit, Record]:
        """Return a contestant's records on one kind of prompts, without failures."""
        found = self.records[name]
        return {
            unit: record for unit, record in found.items() if "failed" not in record and kind in (ALL, record["kind"])
        }


def summarize(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return every cell's figures over all prompts, and by kind if there are several kinds."""
    cells: dict[str, Any] = {}
    for name, cell in _cells(section["passes"]).items():
        kinds = {kind: _kind(section["contestants"], cell, kind) for kind in (ALL, *KINDS)}
        kinds = {kind: found for kind, found in kinds.items() if found["rows"]}
        if len(kinds) == 2:  # all prompts are of one kind
            kinds = {ALL: kinds[ALL]}
        cells[name] = {
            "sampling": cell.sampling,
            "concurrency": cell.concurrency,
            "repeats": cell.repeats,
            "kinds": kinds,
        }
    return {"cells": cells, "prediction": _prediction(cells)}


def mismatches(results: Mapping[str, Any]) -> list[str]:
    """List the cells in which codespec's texts differ from its plain ones.

    Other programs' texts may differ, since they round differently.
    """
    return [
        f"{name}, {cell}, {size}: {row['compared'] - row['equal']} of {row['compared']} texts"
        for size, section in results["sections"].items()
        for cell, values in section.get("summary", {"cells": {}})["cells"].items()
        for name, row in values["kinds"].get(ALL, {"rows": {}})["rows"].items()
        if section["contestants"][name]["family"] == FAMILY and row["equal"] < row["compared"]
    ]


def pace(record: Record) -> float | None:
    """Return the seconds per token after the first ones; None if there is no such token."""
    return decoding_seconds(record) / record["tokens"] if record["tokens"] else None


def predicted_pace(record: Record) -> float | None:
    """Return the same as `pace`, as predicted by the cost table of the pass."""
    return record["predicted"] / record["tokens"] if record["tokens"] else None


def decoding_seconds(record: Record) -> float:
    """Return the seconds of a record without prefill and the first tokens."""
    return float(record["seconds"] - record["first_seconds"])


def compare(mine: Mapping[Unit, Record], other: Mapping[Unit, Record], measure: Pace = pace) -> dict[str, Any] | None:
    """Return the speed-up of `mine` over `other`: a median over `works` workloads, each the median of its `repeats`.

    Its interval is the 95 % bootstrap interval over workloads, or the range of the repeats if there is only one
    workload. None if they have no workload in common.
    """
    by_work: dict[int, list[float]] = {}
    repeats = set()
    for unit in mine.keys() & other.keys():
        own, others = measure(mine[unit]), measure(other[unit])
        if own and others:
            repeats.add(unit[0])
            by_work.setdefault(unit[1], []).append(others / own)
    if not by_work:
        return None
    ratios = [statistics.median(by_work[work]) for work in sorted(by_work)]
    first = next(iter(by_work.values()))
    bounds = bootstrap(ratios, statistics.median) if len(ratios) > 1 else (min(first), max(first))
    return {**interval(statistics.median(ratios), bounds), "works": len(ratios), "repeats": len(repeats)}


def _cells(passes: Iterable[Mapping[str, Any]]) -> dict[str, CellRecords]:
    found: dict[str, CellRecords] = {}
    for single_pass in passes:
        sampling, concurrency = single_pass["sampling"], single_pass["concurrency"]
        cell = found.setdefault(f"{sampling}, {concurrency} at once", CellRecords(sampling, concurrency))
        cell.repeats += 1
        for name, records in single_pass["records"].items():
            for record in records:
                cell.records.setdefault(name, {})[single_pass["repeat"], record["work"]] = record
    return found


def _kind(contestants: Mapping[str, Any], cell: CellRecords, kind: str) -> dict[str, Any]:
    named = {name: records for name in cell.records if (records := cell.of(name, kind))}
    rows = {}
    for name, records in named.items():
        rows[name] = row = _row(list(records.values())) | {"plain": contestants[name]["plain"]}
        # Compare every contestant with plain decoding, and codespec with every contestant.
        others = [other for other in named if other != name and (other == OFF or name == ON)]
        row["times"] = {other: ratio for other in others if (ratio := compare(records, named[other])) is not None}
        if OFF in row["times"] and contestants[name]["family"] == FAMILY:
            predicted = compare(records, named[OFF], predicted_pace)
            row |= {"predicted": predicted["ratio"]} if predicted else {}
    failed = {
        name: next(iter(reasons))
        for name, records in cell.records.items()
        if (reasons := {record["failed"] for record in records.values() if "failed" in record})
    }
    works = {unit[1]: record["prompts"] for records in named.values() for unit, record in records.items()}
    return {"prompts": sum(works.values()), "rows": rows, "failed": failed}


def _row(records: list[Record]) -> dict[str, Any]:
    """Return one contestant's own figures."""
    names = ("drafted", "accepted", "rounds", "tokens", "prompts", "written", "ended", "loops", "first_seconds")
    sums = {name: sum(record[name] for record in records) for name in names}
    texts, rounds, drafted = sums["prompts"], sums["rounds"], sums["drafted"]
    seconds = sum(map(decoding_seconds, records))
    split = {part: sum(record["split"].get(part, 0.0) for record in records) for part in records[0]["split"]}
    compared = [record for record in records if record["equal"] is not None]
    return {
        "tokens_per_second": sums["tokens"] / seconds if seconds else 0.0,
        "first_seconds": sums["first_seconds"] / texts,
        "tokens_a_text": sums["written"] / texts,
        "ended": sums["ended"] / texts,
        "looping": sums["loops"] / texts,
        "acceptance": sums["accepted"] / drafted if drafted else None,
        "accepted_a_round": sums["accepted"] / rounds if rounds else None,
        "drafted_a_round": drafted / rounds if rounds else None,
        "split": {part: value / seconds for part, value in split.items()} if seconds else {},
        "equal": sum(record["equal"] for record in compared),
        "compared": sum(record["prompts"] for record in compared),
        "texts": texts,
    }


def _prediction(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the median and worst error of the speed-ups predicted by the cost table."""
    off = {
        f"{cell}, {name}": abs(row["times"][OFF]["ratio"] / row["predicted"] - 1.0)
        for cell, values in cells.items()
        for name, row in values["kinds"].get(ALL, {"rows": {}})["rows"].items()
        if "predicted" in row
    }
    if not off:
        return {}
    worst = max(off, key=lambda where: off[where])
    return {
        "rows": len(off),
        "median_error": statistics.median(off.values()),
        "worst_error": off[worst],
        "worst": worst,
    }


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    lines = []
    for name, section in _measured(found).items():
        lines += ["", f"── {_size(name)} " + "─" * 40, section["configuration"]["machine"]["processor"]]
        lines += [*_about(section), *WHO, "fastest variants:"]
        lines += [f"  {contestant}: {_variant(facts)}" for contestant, facts in section["contestants"].items()]
        for cell, values in section["summary"]["cells"].items():
            for kind, figures in values["kinds"].items():
                title = f"{cell}, {figures['prompts']} prompts {TITLES[kind]}, {values['repeats']} repeats:"
                lines += ["", title, *_table(figures)]
        lines += ["", *_prediction_lines(section["summary"]["prediction"])]
    return lines


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with figures."""
    return {name: section for name, section in found["sections"].items() if "summary" in section}


def _about(section: Mapping[str, Any]) -> list[str]:
    """Return the models, notes and versions, and the commits if the passes are from several."""
    lines = [f"{role}: {_model(facts)}" for role, facts in section["pair"].items()]
    lines += [section["note"]] if section["note"] else []
    versions = section["configuration"]["versions"].items()
    lines.append(", ".join(f"{name} {version}" for name, version in versions))
    commits = sorted({single_pass["commit"] for single_pass in section["passes"]})
    if len(commits) > 1:
        lines.append(f"passes of several commits with the same code: {', '.join(commits)}")
    return lines


def _model(facts: Mapping[str, Any]) -> str:
    stored = f", from {facts['stored']}" if facts.get("stored") else ""
    return f"{facts['name']}, {facts['parameters'] / 1e6:.1f} M parameters, {facts['vocabulary']} tokens{stored}"


def _variant(facts: Mapping[str, Any]) -> str:
    """Return how a contestant is run, for one prompt and for many, or the reason why it is absent."""
    if "absent" in facts:
        return str(facts["absent"])
    parts = []
    for size, variant in facts["fastest"].items():
        drafter = f", drafter {variant['drafter_dtype']}" if variant["drafter_dtype"] else ""
        parts.append(f"{size}: {variant['dtype']}{drafter}, {variant['threads']} thread(s)")
    options = ", ".join(f"{name} {value}" for name, value in facts["settings"].items())
    return "; ".join(parts) + (f" ({options})" if options else "")


def _table(figures: Mapping[str, Any]) -> list[str]:
    drafts = "accepted", "a round"
    lines: list[list[str]] = [
        ["", "tokens/s", "× off", "first ms", *drafts, "equal", "tokens", "ended", "loops"],
    ]
    for name, row in figures["rows"].items():
        speed = [f"{row['tokens_per_second']:.1f}", format_ratio(row["times"].get(OFF), 2)]
        first = f"{row['first_seconds'] * 1000:.0f}"
        a_round = f"{row['accepted_a_round']:.2f}" if row["accepted_a_round"] else ""
        accepted = [f"{row['acceptance']:.0%}" if row["drafted_a_round"] else "", a_round]
        equal = f"{row['equal']}/{row['compared']}" if row["compared"] else "–"
        texts = [f"{row['tokens_a_text']:.1f}", f"{row['ended']:.0%}", f"{row['looping']:.0%}"]
        lines.append([name, *speed, first, *accepted, equal, *texts])
    found = table(lines)
    if ON in figures["rows"]:
        times = figures["rows"][ON]["times"].items()
        found.append(f"  {ON}, × others: " + ", ".join(f"{name} {format_ratio(ratio, 2)}" for name, ratio in times))
    found += [f"  {line}" for name, row in figures["rows"].items() for line in _details(name, row)]
    return found + [f"  {name} failed: {why}" for name, why in figures["failed"].items()]


def _details(name: str, row: Mapping[str, Any]) -> list[str]:
    split = ", ".join(f"{part} {share:.0%}" for part, share in row["split"].items())
    predicted = f"; predicted {row['predicted']:.2f} × off" if "predicted" in row else ""
    lines = [f"{name}: {split}{predicted}"] if split else []
    if row["compared"] and row["equal"] < row["compared"] and not row["plain"]:  # another program rounds differently
        lines.append(f"{name}: NOT EQUAL to plain in {row['compared'] - row['equal']} of {row['compared']} texts")
    return lines


def _prediction_lines(values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    middle = f"{values['median_error']:.0%} off in the median of {values['rows']} rows"
    return [f"the cost table's predictions are {middle}, {values['worst_error']:.0%} at worst ({values['worst']})"]


def _size(name: str) -> str:
    return "the pair as it is" if name == "own" else f"target at {name}'s cost (simulated)"
