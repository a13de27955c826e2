"""From the records of `codespec bench decode` to figures: speeds, ratios with their spread, acceptance, the bound.

A ratio compares two contestants on the same batches of the same repeats only; its value is the median over repeats, its
interval a bootstrap over batches. Knows records; plain JSON values come out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.bootstrap import ratio_interval
from codespec.bench.decode_bound import Rounds, bound
from codespec.bench.decode_prompts import CODE, GROUPS
from codespec.bench.peers.contest import Variant
from codespec.bench.peers.ours import OFF, ON, table_name
from codespec.control.costs import CostTable

HEADLINE_PROMPTS, HEADLINE_REPEATS = 50, 5
ALL = "all"
PLAIN_FAMILIES = ("codespec", "transformers")  # of the same weights in the same formats

Unit = tuple[int, int]  # repeat, batch
Record = Mapping[str, Any]


@dataclass(slots=True)
class Cell:
    """All records of a cell by name and unit."""

    concurrency: int
    repeats: int = 0
    records: dict[str, dict[Unit, Record]] = field(default_factory=dict)

    def of(self, name: str, group: str) -> dict[Unit, Record]:
        """The sound records of a contestant on a group of prompts."""
        found = self.records.get(name, {})
        return {
            unit: record for unit, record in found.items() if "failed" not in record and group in (ALL, record["group"])
        }


def summarize(section: Mapping[str, Any]) -> dict[str, Any]:
    """Every cell's figures by group of prompts, and the headline if there is enough for one."""
    found: dict[str, Any] = {}
    for key, cell in _cells(section["passes"]).items():
        groups = {group: _group(section, cell, group) for group in (*GROUPS, ALL)}
        found[key] = {"repeats": cell.repeats, "groups": {name: rows for name, rows in groups.items() if rows}}
    return {"cells": found, "headline": _headline(found)}


def _cells(passes: Iterable[Mapping[str, Any]]) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for turn in passes:
        cell = found.setdefault(f"{turn['sampling']}, {turn['concurrency']} at once", Cell(turn["concurrency"]))
        cell.repeats += 1
        for name, records in turn["records"].items():
            for record in records:
                cell.records.setdefault(name, {})[turn["repeat"], record["batch"]] = record
    return found


def _group(section: Mapping[str, Any], cell: Cell, group: str) -> dict[str, Any]:
    contestants = section["contestants"]
    named = {name: records for name in cell.records if (records := cell.of(name, group))}
    if not named:
        return {}
    plains = [n for n in named if contestants[n]["plain"] and contestants[n]["family"] in PLAIN_FAMILIES]
    fastest = max(plains, key=lambda name: _speed(named[name].values()), default="")
    rows = {name: _row(section, cell, name, records) for name, records in named.items()}
    for name, row in rows.items():
        row["plain"] = contestants[name]["plain"]
        row["times"] = {other: _ratio(named[name], named[other]) for other in named if other != name}
        row["times_fastest_plain"] = _ratio(named[name], named[fastest]) if fastest else None
        row["times_fastest_plain_with_reading"] = _ratio(named[name], named[fastest], _whole) if fastest else None
        _judge(row, row["times"].get(OFF))
    failed = {
        name: next(iter(reasons))
        for name, records in cell.records.items()
        if (reasons := {record["failed"] for record in records.values() if "failed" in record})
    }
    prompts = {record["batch"]: record["prompts"] for record in max(named.values(), key=len).values()}
    return {"prompts": sum(prompts.values()), "fastest_plain": fastest, "rows": rows, "failed": failed}


def _row(section: Mapping[str, Any], cell: Cell, name: str, by_unit: Mapping[Unit, Record]) -> dict[str, Any]:
    """One contestant's own figures."""
    records = list(by_unit.values())
    drafted, accepted, rounds = (sum(r[key] for r in records) for key in ("drafted", "accepted", "rounds"))
    seconds = sum(_decoding(record) for record in records)
    split = {part: sum(r["split"].get(part, 0.0) for r in records) for part in records[0]["split"]}
    compared = [record for record in records if record["equal"] is not None]
    texts = sum(record["prompts"] for record in records)
    row = {
        "tokens_per_second": _speed(records),
        "first_seconds": sum(record["first_seconds"] for record in records) / texts,
        "acceptance": accepted / drafted if drafted else None,
        "accepted_a_round": accepted / rounds if rounds else None,
        "drafted_a_round": drafted / rounds if rounds else None,
        "split": {part: value / seconds for part, value in split.items()},
        "equal": sum(record["equal"] for record in compared),
        "compared": sum(record["prompts"] for record in compared),
        "texts": texts,
        "looping": sum(record["loops"] for record in records) / texts,
    }
    if "nats" in records[0]:
        row["nats"] = statistics.fmean(record["nats"] for record in records)
    if "played" in records[0]:
        row |= _modelled(section, cell, name, records)
    return row


def _modelled(section: Mapping[str, Any], cell: Cell, name: str, records: Sequence[Record]) -> dict[str, Any]:
    """What the run's own cost table says of the rounds that were played."""
    fastest = section["contestants"][name]["fastest"]
    variant = Variant(**(fastest.get("one" if cell.concurrency == 1 else "many") or fastest["one"]))
    table = CostTable.from_dict(section["costs"][table_name(variant)])
    rounds = Rounds.sum_of(record["played"] for record in records)
    tokens = sum(record["tokens"] for record in records)
    plain = tokens * table.plain(cell.concurrency, rounds.context) / cell.concurrency
    found = bound(rounds, table, cell.concurrency)
    survivals = {source: kept.survivals() for source, kept in rounds.kept.items() if source}
    return {"predicted": plain / rounds.modelled, "bound": found.as_dict(), "survivals": survivals}


def _judge(row: dict[str, Any], off: Mapping[str, Any] | None) -> None:
    """Sets what was measured beside what the table allows."""
    if "bound" in row and off is not None:
        row["result_of_bound"] = off["ratio"] / row["bound"]["times_plain"]
        row["result_of_predicted"] = off["ratio"] / row["predicted"]


def _decoding(record: Record) -> float:
    """Seconds behind the first tokens."""
    return float(record["seconds"] - record["first_seconds"])


def _pace(record: Record) -> float:
    return _decoding(record) / int(record["tokens"])


def _whole(record: Record) -> float:
    """Seconds of the whole work, the prompts' reading included."""
    return float(record["seconds"])


def _ratio(
    mine: Mapping[Unit, Record], other: Mapping[Unit, Record], measure: Callable[[Record], float] = _pace
) -> dict[str, Any] | None:
    """How many times as fast as another one, on what both decoded; None where that is nothing."""
    common = sorted(set(mine) & set(other))
    if not common:
        return None
    paces = {unit: (measure(mine[unit]), measure(other[unit])) for unit in common}
    repeats = sorted({repeat for repeat, _ in common})
    by_repeat = [_over(paces[unit] for unit in common if unit[0] == repeat) for repeat in repeats]
    by_batch: dict[int, list[tuple[float, float]]] = {}
    for (_, batch), pace in paces.items():
        by_batch.setdefault(batch, []).append(pace)
    own, others = ([statistics.fmean(pair[side] for pair in pairs) for pairs in by_batch.values()] for side in (0, 1))
    interval = ratio_interval(others, own)
    assert interval is not None
    ratio = statistics.median(by_repeat)
    # Of one batch there is nothing to draw from: the repeats are all that is known of the spread.
    low, high = (interval.low, interval.high) if len(by_batch) > 1 else (min(by_repeat), max(by_repeat))
    return {
        "ratio": ratio,
        "low": min(low, ratio),
        "high": max(high, ratio),
        "least": min(by_repeat),
        "most": max(by_repeat),
        "batches": len(by_batch),
        "repeats": len(repeats),
    }


def _over(paces: Iterable[tuple[float, float]]) -> float:
    pairs = list(paces)
    return sum(other for _, other in pairs) / sum(mine for mine, _ in pairs)


def _speed(records: Iterable[Record]) -> float:
    found = list(records)
    return float(sum(record["tokens"] for record in found) / sum(_decoding(record) for record in found))


def _headline(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Speculation on loop-free text, one prompt at once; or why there is nothing to say yet."""
    cell = cells.get("greedy, 1 at once")
    code = cell["groups"].get(CODE) if cell else None
    if not cell or not code or ON not in code["rows"]:
        return {"stated": False, "why": "no loop-free prompt was decoded greedily, one at once"}
    row = code["rows"][ON]
    if code["prompts"] < HEADLINE_PROMPTS or cell["repeats"] < HEADLINE_REPEATS:
        why = (
            f"{code['prompts']} loop-free prompts and {cell['repeats']} repeats, where {HEADLINE_PROMPTS} and "
            f"{HEADLINE_REPEATS} are needed"
        )
        return {"stated": False, "why": why}
    return {"stated": True, "times_fastest_plain": row["times_fastest_plain"], "fastest_plain": code["fastest_plain"]}
