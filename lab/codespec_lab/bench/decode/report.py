"""Format the figures of `codespec bench decode` as tables and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec_lab.bench.decode.peers.codespec_engine import NEVER_RIGHT, OFF, ON, SUFFIX
from codespec_lab.bench.decode.peers.hugging_face import ASSISTED, LOOKUP
from codespec_lab.bench.decode.peers.hugging_face import PLAIN as TRANSFORMERS
from codespec_lab.bench.decode.peers.llama_cpp import FAMILY as LLAMA
from codespec_lab.bench.decode.peers.openvino_genai import FAMILY as OPENVINO
from codespec_lab.bench.decode.summary import ALL
from codespec_lab.bench.plot import Bar, Chart
from codespec_lab.bench.report import bounds, format_ratio, table
from codespec_lab.bench.sites import PROJECTS, PROMPTS

TITLES = {PROMPTS: "of the prompts file", PROJECTS: "of held-out projects", ALL: "of all kinds"}
WHO = (
    "× is the median over prompts (several at once: over batches of prompts) of ratios taken in turn, with its 95 % "
    "bootstrap interval",
    "several at once: codespec is timed while its batch is full, others from a batch's first token to its last text's "
    "end; contestants that take one prompt only are left out",
    "equal are texts that plain decoding writes in the same number format; other programs' formats are compared with "
    "codespec in a float format",
)
FAR = 0.5  # nats a token below plain sampling: texts further below are not the target's


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
        lines += ["", *_prediction(section["summary"]["prediction"]), "", *headline(section)]
    return lines


def headline(section: Mapping[str, Any]) -> list[str]:
    """Return the gains of codespec's speculation, one row per cell, as a Markdown table for documents."""
    rows = {cell: values["kinds"][ALL]["rows"] for cell, values in section["summary"]["cells"].items()}
    others = [OFF, SUFFIX, TRANSFORMERS, ASSISTED, LOOKUP]
    others += [name for name in section["contestants"] if name.startswith((LLAMA, OPENVINO))]
    others = [name for name in others if any(name in row.get(ON, {"times": ()})["times"] for row in rows.values())]
    heads = ["× " + name.removeprefix("codespec ").removeprefix(f"{TRANSFORMERS} ") for name in others]
    lines = ["| " + " | ".join([ON, "tokens/s", *heads, "never right, × off"]) + " |", "|---" * (len(others) + 3) + "|"]
    for cell, row in rows.items():
        if ON not in row:
            continue
        times, never = row[ON]["times"], row.get(NEVER_RIGHT, {"times": {}})["times"].get(OFF)
        cells = [cell, f"{row[ON]['tokens_per_second']:.1f}", *(format_ratio(times.get(name), 2) for name in others)]
        lines.append("| " + " | ".join([*cells, format_ratio(never, 2)]) + " |")
    return lines


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return charts of the speed relative to plain decoding, one per cell."""
    return [
        _chart(name, cell, values["kinds"][ALL])
        for name, section in _measured(found).items()
        for cell, values in section["summary"]["cells"].items()
        if OFF in values["kinds"][ALL]["rows"]
    ]


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with figures."""
    return {name: section for name, section in found["sections"].items() if "summary" in section}


def _about(section: Mapping[str, Any]) -> list[str]:
    """Return the models, notes and versions, and the commits if the passes are from several."""
    lines = [f"{role}: {_model(facts)}" for role, facts in section["pair"].items()]
    lines += [section["note"]] if section["note"] else []
    versions = section["configuration"]["versions"].items()
    lines.append(", ".join(f"{name} {version}" for name, version in versions))
    commits = sorted({one["commit"] for one in section["passes"]})
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
        first, drafting = f"{row['first_seconds'] * 1000:.0f}", row["acceptance"] is not None
        accepted = [f"{row['acceptance']:.0%}", f"{row['accepted_a_round']:.2f}"] if drafting else ["", ""]
        equal = f"{row['equal']}/{row['compared']}" if row["compared"] else "–"
        texts = [f"{row['tokens_a_text']:.1f}", f"{row['ended']:.0%}", f"{row['looping']:.0%}"]
        lines.append([name, *speed, first, *accepted, equal, *texts])
    found = table(lines)
    if ON in figures["rows"]:
        times = figures["rows"][ON]["times"].items()
        found.append(f"  {ON}, × others: " + ", ".join(f"{name} {format_ratio(ratio, 2)}" for name, ratio in times))
    found += [f"  {line}" for name, row in figures["rows"].items() for line in _details(name, row, figures["rows"])]
    return found + [f"  {name} failed: {why}" for name, why in figures["failed"].items()]


def _details(name: str, row: Mapping[str, Any], rows: Mapping[str, Any]) -> list[str]:
    split = ", ".join(f"{part} {share:.0%}" for part, share in row["split"].items())
    predicted = f"; predicted {row['predicted']:.2f} × off" if "predicted" in row else ""
    lines = [f"{name}: {split}{predicted}"]
    if row["compared"] and row["equal"] < row["compared"] and not row["plain"]:  # another program rounds differently
        lines.append(f"{name}: NOT EQUAL to plain in {row['compared'] - row['equal']} of {row['compared']} texts")
    plain = rows.get(OFF, {})
    if "nats" in row and "nats" in plain and row["nats"] < plain["nats"] - FAR:
        both = f"it gives them {row['nats']:.2f} nats a token, plain ones {plain['nats']:.2f}"
        lines.append(f"{name}: NOT THE TARGET'S TEXTS: {both}")
    return lines


def _prediction(values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    middle = f"{values['median_error']:.0%} off in the median of {values['rows']} rows"
    return [f"the cost table's predictions are {middle}, {values['worst_error']:.0%} at worst ({values['worst']})"]


def _chart(name: str, cell: str, figures: Mapping[str, Any]) -> Chart:
    off = {"ratio": 1.0, "low": 1.0, "high": 1.0}
    bars = []
    for contestant, row in figures["rows"].items():
        times = off if contestant == OFF else row["times"].get(OFF)
        if times is None:
            continue
        kind = "best" if contestant == ON else "plain" if contestant == OFF else "bar"
        note = f"{times['ratio']:.2f}  ({row['tokens_per_second']:.0f} tokens/s)"
        bars.append(Bar(contestant, times["ratio"], kind, bounds(times), note))
    note = f"{_size(name)}; {figures['prompts']} prompts; medians with 95 % bootstrap intervals"
    return Chart(f"Speed against plain decoding: {cell}", note, bars, line=1.0)


def _size(name: str) -> str:
    return "the pair as it is" if name == "own" else f"target at {name}'s cost (simulated)"
