"""From the records of `codespec bench decode` to figures: speeds, ratios with their spread, acceptance, the bound.

A ratio compares two contestants on the same batches of the same repeats only; its value is the median over repeats, its
interval a bootstrap over batches. Knows records; plain JSON values come out.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.bench.bootstrap import ratio_interval
from codespec.bench.decode_bound import Kept, Played, best_bound, sum_kept
from codespec.bench.peers.contest import CODE, GROUPS, Variant
from codespec.bench.peers.ours import FAMILY, OFF, ON, table_name
from codespec.control.costs import CostTable

HEADLINE_PROMPTS, HEADLINE_REPEATS = 50, 5
ALL = "all"
PLAIN_FAMILIES = (FAMILY, "transformers")  # of the same weights in the same formats

Unit = tuple[int, int]  # repeat, batch
Record = Mapping[str, Any]


@dataclass(slots=True)
class Cell:
    """All records of a cell by name and unit."""

    sampling: str
    concurrency: int
    repeats: int = 0
    records: dict[str, dict[Unit, Record]] = field(default_factory=dict)
    costs: list[Mapping[str, Any]] = field(default_factory=list)  # a pass: tables by variant

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
    return {"cells": found, "headline": _headline(found), "prediction": _prediction(found)}


def mismatches(sheet: Mapping[str, Any]) -> list[str]:
    """Where codespec's own texts differ from its plain ones, exact here; another program's may, it rounds otherwise."""
    return [
        f"{name}, {cell}, {size}: {row['compared'] - row['equal']} of {row['compared']} texts"
        for size, section in sheet["sections"].items()
        for cell, values in section.get("summary", {"cells": {}})["cells"].items()
        for name, row in values["groups"].get(ALL, {"rows": {}})["rows"].items()
        if section["contestants"][name]["family"] == FAMILY and row["equal"] < row["compared"]
    ]


def condensed(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """A sheet as documents keep it: without single passes, without ratios between two peers, four digits a figure."""
    sections = {}
    for name, section in sheet["sections"].items():
        kept = {key: value for key, value in section.items() if key != "passes"}
        kept["prompts"] = {s: {k: v for k, v in told.items() if k != "numbers"} for s, told in kept["prompts"].items()}
        sections[name] = _without_peer_ratios(kept)
    found: dict[str, Any] = _rounded({**sheet, "sections": sections})
    return found


def _without_peer_ratios(section: dict[str, Any]) -> dict[str, Any]:
    section = copy.deepcopy(section)
    for cell in section.get("summary", {"cells": {}})["cells"].values():
        for rows in (group["rows"] for group in cell["groups"].values()):
            for name, row in rows.items():
                row["times"] = {other: ratio for other, ratio in row["times"].items() if other == OFF or name == ON}
    return section


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    return [_rounded(inside) for inside in value] if isinstance(value, list | tuple) else value


def _cells(passes: Iterable[Mapping[str, Any]]) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for turn in passes:
        cell = found.setdefault(
            f"{turn['sampling']}, {turn['concurrency']} at once", Cell(turn["sampling"], turn["concurrency"])
        )
        cell.repeats += 1
        cell.costs.append(turn["costs"])
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
        if OFF in row["times"] and "played" in next(iter(named[name].values())):
            modelled = _ratio(named[name], named[OFF], _modelled)
            row |= {} if modelled is None else {"predicted": modelled["ratio"]}
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
        row |= _bound(section, cell, name, records)
    return row


def _bound(section: Mapping[str, Any], cell: Cell, name: str, records: Sequence[Record]) -> dict[str, Any]:
    """What the passes' own cost tables allow: the one in their middle."""
    counted = _counted(section, cell, name, {record["group"] for record in records})
    if not counted:
        return {}
    count, context = cell.concurrency, Played.sum_of([record["played"] for record in records]).context
    found = []
    for costs in cell.costs:
        plain = _table(section, cell, OFF, costs).plain(count, context)
        found.append(best_bound(counted, _table(section, cell, name, costs), count, context, plain))
    return {"bound": sorted(found, key=lambda bound: bound.times_plain)[len(found) // 2].as_dict()}


def _table(section: Mapping[str, Any], cell: Cell, name: str, costs: Mapping[str, Any]) -> CostTable:
    """What rounds cost as a contestant was run."""
    fastest = section["contestants"][name]["fastest"]
    variant = Variant(**(fastest.get("one" if cell.concurrency == 1 else "many") or fastest["one"]))
    return CostTable.from_dict(costs[table_name(variant)])


def _counted(section: Mapping[str, Any], cell: Cell, name: str, groups: Collection[str]) -> list[dict[str, Kept]]:
    """What held at fixed lengths on these groups of prompts, for each length and each part of a contestant's proposers:
    it may leave any of them out.
    """
    known = section["acceptance"].get(cell.sampling, {})
    if name not in known:
        return []
    sources = {other: set(section["contestants"][other]["settings"]["sources"]) for other in known}
    parts = [by_group for other, by_group in known.items() if sources[other] <= sources[name]]
    return [
        sum_kept(same_length)
        for by_group in parts
        for same_length in zip(*(by_group[group] for group in sorted(groups)), strict=True)
    ]


def _judge(row: dict[str, Any], off: Mapping[str, Any] | None) -> None:
    """Sets what was measured beside what the table allows."""
    if off is None or "predicted" not in row:
        return
    row["result_of_predicted"] = off["ratio"] / row["predicted"]
    if "bound" in row:
        row["result_of_bound"] = off["ratio"] / row["bound"]["times_plain"]


def _decoding(record: Record) -> float:
    """Seconds behind the first tokens."""
    return float(record["seconds"] - record["first_seconds"])


def _pace(record: Record) -> float:
    return _decoding(record) / int(record["tokens"])


def _modelled(record: Record) -> float:
    """Seconds a token by the pass's own cost table."""
    return float(record["played"]["modelled"]) / int(record["tokens"])


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


def _prediction(cells: Mapping[str, Any]) -> dict[str, Any]:
    """How far the cost table's own speed-ups are from the measured ones: in the middle, and at worst (and where)."""
    off = {
        f"{cell}, {group}, {name}": abs(row["result_of_predicted"] - 1.0)
        for cell, values in cells.items()
        for group, told in values["groups"].items()
        for name, row in told["rows"].items()
        if group != ALL and "result_of_predicted" in row and row["acceptance"] is not None
    }
    if not off:
        return {}
    where = max(off, key=lambda place: off[place])
    return {
        "rows": len(off),
        "median_error": statistics.median(off.values()),
        "worst_error": off[where],
        "worst": where,
    }
