"""From the records of `codespec bench decode` to figures: speeds, ratios with their spread, acceptance.

Knows records; plain JSON values come out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.decode_ratios import Record, Unit, compare, predicted_pace, seconds_behind_first
from codespec.bench.peers.contest import KINDS
from codespec.bench.peers.ours import FAMILY, OFF, ON

ALL = "all"


@dataclass(slots=True)
class CellRecords:
    """All records of a cell by name and unit."""

    sampling: str
    concurrency: int
    repeats: int = 0
    records: dict[str, dict[Unit, Record]] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> dict[Unit, Record]:
        """The sound records of a contestant on one kind of prompts."""
        found = self.records[name]
        return {unit: one for unit, one in found.items() if "failed" not in one and kind in (ALL, one["kind"])}


def summarize(section: Mapping[str, Any]) -> dict[str, Any]:
    """Every cell's figures over all prompts, and by kind where works of several kinds were decoded."""
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


def mismatches(sheet: Mapping[str, Any]) -> list[str]:
    """Where codespec's own texts differ from its plain ones, exact here; another program's may, it rounds otherwise."""
    return [
        f"{name}, {cell}, {size}: {row['compared'] - row['equal']} of {row['compared']} texts"
        for size, section in sheet["sections"].items()
        for cell, values in section.get("summary", {"cells": {}})["cells"].items()
        for name, row in values["kinds"].get(ALL, {"rows": {}})["rows"].items()
        if section["contestants"][name]["family"] == FAMILY and row["equal"] < row["compared"]
    ]


def _cells(passes: Iterable[Mapping[str, Any]]) -> dict[str, CellRecords]:
    found: dict[str, CellRecords] = {}
    for one in passes:
        sampling, concurrency = one["sampling"], one["concurrency"]
        cell = found.setdefault(f"{sampling}, {concurrency} at once", CellRecords(sampling, concurrency))
        cell.repeats += 1
        for name, records in one["records"].items():
            for record in records:
                cell.records.setdefault(name, {})[one["repeat"], record["work"]] = record
    return found


def _kind(contestants: Mapping[str, Any], cell: CellRecords, kind: str) -> dict[str, Any]:
    named = {name: records for name in cell.records if (records := cell.of(name, kind))}
    rows = {}
    for name, records in named.items():
        rows[name] = row = _row(list(records.values())) | {"plain": contestants[name]["plain"]}
        # What is worth knowing: everybody against plain decoding, and codespec against everybody.
        others = [other for other in named if other != name and (other == OFF or name == ON)]
        row["times"] = {
            other: ratio.as_dict() for other in others if (ratio := compare(records, named[other])) is not None
        }
        if OFF in row["times"] and contestants[name]["family"] == FAMILY:
            predicted = compare(records, named[OFF], predicted_pace)
            row |= {"predicted": predicted.ratio} if predicted else {}
    failed = {
        name: next(iter(reasons))
        for name, records in cell.records.items()
        if (reasons := {record["failed"] for record in records.values() if "failed" in record})
    }
    works = {unit[1]: record["prompts"] for records in named.values() for unit, record in records.items()}
    return {"prompts": sum(works.values()), "rows": rows, "failed": failed}


def _row(records: list[Record]) -> dict[str, Any]:
    """One contestant's own figures."""
    names = ("drafted", "accepted", "rounds", "tokens", "prompts", "written", "ended", "loops", "first_seconds")
    sums = {name: sum(record[name] for record in records) for name in names}
    texts, rounds, drafted = sums["prompts"], sums["rounds"], sums["drafted"]
    seconds = sum(map(seconds_behind_first, records))
    split = {part: sum(record["split"].get(part, 0.0) for record in records) for part in records[0]["split"]}
    compared = [record for record in records if record["equal"] is not None]
    row = {
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
    if "nats" in records[0]:
        row["nats"] = statistics.fmean(record["nats"] for record in records)
    return row


def _prediction(cells: Mapping[str, Any]) -> dict[str, Any]:
    """How far the cost table's own speed-ups are from the measured ones: in the middle, and at worst (and where)."""
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
