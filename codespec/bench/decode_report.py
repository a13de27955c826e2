"""`codespec bench decode` for people: tables and charts from its figures. Formats only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec.bench.decode_grid import OF, SHARE
from codespec.bench.decode_passes import UNBATCHED
from codespec.bench.decode_summary import ALL
from codespec.bench.peers.contest import CODE, LOOPS, NOISE, REWRITE
from codespec.bench.peers.ours import OFF
from codespec.bench.plot import Bar, Chart

TITLES = {
    CODE: "loop-free texts",
    LOOPS: "texts that go round in circles",
    REWRITE: "code repeated with small edits",
    NOISE: "random words",
    ALL: "all prompts",
}
WHO = (
    f"codespec decodes all prompts in each repeat, others {SHARE} of {OF} in turn where they are many (the slowest 1)",
    f"who takes one prompt after the other decodes {UNBATCHED} of a first batch where several run at once",
)
ENOUGH = 0.9  # of the bound
ALONE = ", 1 at once"  # the end of such a cell's name
FAR = 0.5  # nats a token from plain sampling's: not the target's texts any more


def report(found: Mapping[str, Any]) -> list[str]:
    """Everything worth reading, as lines."""
    lines = []
    for name, section in _measured(found).items():
        lines += ["", f"── {_size(name)} " + "─" * 40, section["configuration"]["machine"]["processor"]]
        lines += [*_prompts(section), *WHO, "fastest variants:"]
        lines += [f"  {contestant}: {_variant(told)}" for contestant, told in section["contestants"].items()]
        for cell, values in section["summary"]["cells"].items():
            for group, told in values["groups"].items():
                lines += ["", f"{cell}, {TITLES[group]} ({told['prompts']} prompts, {values['repeats']} repeats):"]
                lines += _table(told)
        lines += ["", *_prediction(section["summary"]["prediction"]), _headline(section["summary"]["headline"])]
    return lines


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Speed against the fastest plain decoding on loop-free texts, one prompt at once; the tables have the rest."""
    drawn = []
    for name, section in _measured(found).items():
        for cell, values in section["summary"]["cells"].items():
            told = values["groups"].get(CODE)
            if told and cell.endswith(ALONE):
                drawn.append(_chart(name, cell, told))
    return drawn


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that have figures."""
    return {name: section for name, section in found["sections"].items() if "summary" in section}


def _variant(told: Mapping[str, Any]) -> str:
    """How a contestant is run, for one prompt and for many; or why it is not."""
    if "absent" in told:
        return str(told["absent"])
    said = []
    for size, variant in told["fastest"].items():
        drafter = f", drafter {variant['drafter_dtype']}" if variant["drafter_dtype"] else ""
        said.append(f"{size}: {variant['dtype']}{drafter}, {variant['threads']} thread(s)")
    alone = "" if told["batched"] else "; one prompt after the other"
    options = ", ".join(f"{name} {value}" for name, value in told["settings"].items())
    return "; ".join(said) + (f" ({options})" if options else "") + alone


def _prompts(section: Mapping[str, Any]) -> list[str]:
    lines = [section["note"]] if section["note"] else []
    for sampling, told in section["prompts"].items():
        share = told["looping"] / max(1, told["places"])
        lines.append(f"{sampling}: {told['places']} places looked at, {share:.0%} of the texts go round in circles")
    commits = sorted({turn["commit"] for turn in section["passes"]})
    if len(commits) > 1:
        lines.append(f"passes of several commits with the same code: {', '.join(commits)}")
    return lines


def _table(told: Mapping[str, Any]) -> list[str]:
    head = ("", "tokens/s", "× fastest plain", "with reading", "× off", "accepted", "a round", "equal", "loops")
    lines = ["{:28}{:>9}{:>21}{:>14}{:>7}{:>10}{:>9}{:>11}{:>7}".format(*head)]
    for name, row in told["rows"].items():
        off = row["times"].get(OFF)
        whole = row["times_fastest_plain_with_reading"]
        cells = f"{row['tokens_per_second']:9.1f}{_interval(row['times_fastest_plain']):>21}"
        cells += f"{whole['ratio']:14.2f}" if whole else f"{'':14}"
        cells += f"{off['ratio']:7.2f}" if off else f"{'':7}"
        drafts = row["acceptance"] is not None
        cells += f"{row['acceptance']:10.0%}{row['accepted_a_round']:9.2f}" if drafts else f"{'':19}"
        lines.append(f"{name:28}{cells}{_equal(row):>11}{row['looping']:7.0%}")
    lines.append(f"  fastest plain: {told['fastest_plain'] or 'none ran'}")
    lines += [f"  {line}" for name, row in told["rows"].items() for line in _details(name, row, told)]
    return lines + [f"  {name} failed: {why}" for name, why in told["failed"].items()]


def _details(name: str, row: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    split = ", ".join(f"{part} {share:.0%}" for part, share in row["split"].items())
    lines = [f"{name}: {split}"]
    if "result_of_predicted" in row and row["acceptance"] is not None:
        lines += [f"{name}: {_judged(row)}"]
    if row["compared"] and row["equal"] < row["compared"] and not row["plain"]:  # another program rounds otherwise
        lines.append(f"{name}: NOT EQUAL to plain in {row['compared'] - row['equal']} of {row['compared']} texts")
    plain = told["rows"].get(told["fastest_plain"], {})
    if "nats" in row and "nats" in plain and row["nats"] < plain["nats"] - FAR:
        said = f"it gives them {row['nats']:.2f} nats a token, plain ones {plain['nats']:.2f}"
        lines.append(f"{name}: NOT THE TARGET'S TEXTS: {said}")
    return lines


def _judged(row: Mapping[str, Any]) -> str:
    """The result beside what the cost table allows and says."""
    result = row["times"][OFF]["ratio"]
    said = f"result {result:.2f} × off, predicted {row['predicted']:.2f} ({row['result_of_predicted']:.0%})"
    if "result_of_bound" not in row:
        return said
    share = row["result_of_bound"]
    verdict = "passes" if share >= ENOUGH else f"less than {ENOUGH:.0%}"
    lengths = ", ".join(f"{source} {length}" for source, length in row["bound"]["lengths"].items())
    return f"{said}, bound {row['bound']['times_plain']:.2f} ({share:.0%} of it: {verdict}; at lengths {lengths})"


def _equal(row: Mapping[str, Any]) -> str:
    return f"{row['equal']}/{row['compared']}" if row["compared"] else "–"


def _interval(values: Mapping[str, Any] | None) -> str:
    return "" if values is None else f"{values['ratio']:.2f} ({values['low']:.2f}–{values['high']:.2f})"


def _prediction(values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    said = f"{values['median_error']:.0%} off in the median of {values['rows']} rows"
    return [f"the cost table's predictions are {said}, {values['worst_error']:.0%} at worst ({values['worst']})"]


def _headline(values: Mapping[str, Any]) -> str:
    if not values["stated"]:
        return f"no headline: {values['why']}"
    return f"headline: {_interval(values['times_fastest_plain'])} × the fastest plain ({values['fastest_plain']})"


def _chart(name: str, cell: str, told: Mapping[str, Any]) -> Chart:
    bars = []
    for contestant, row in told["rows"].items():
        times = row["times_fastest_plain"]
        if times is None:
            continue
        kind = "best" if contestant == "codespec on" else "plain" if contestant == told["fastest_plain"] else "bar"
        note = f"{times['ratio']:.2f}  ({row['tokens_per_second']:.0f} tokens/s)"
        bars.append(Bar(contestant, times["ratio"], kind, (times["low"], times["high"]), note))
    note = f"{_size(name)}; {told['prompts']} loop-free prompts; 95 % bootstrap intervals"
    return Chart(f"Speed against the fastest plain decoding: {cell}", note, bars, line=1.0)


def _size(name: str) -> str:
    return "the pair as it is" if name == "own" else f"target at {name}'s cost (simulated)"
