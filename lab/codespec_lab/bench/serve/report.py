"""Format the figures of `codespec bench serve` as tables, verdicts and charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codespec_lab.bench.plot import Bar, Chart
from codespec_lab.bench.report import (
    bounds,
    format_load,
    format_percentiles,
    format_ratio,
    section_title,
    size_of,
    verdict_lines,
)

LEAST_READS_LESS = 5.0
MOST_OVERHEAD_MS = 3.0


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    settings, machine = found["settings"], found["machine"]
    lines = [f"{settings['places']} places, {settings['dtype']}; {format_load(machine)}", machine["processor"]]
    lines += [found["note"]] if found["note"] else []
    for shape, section in found["daemons"].items():
        lines += ["", section_title(size_of(shape)), "", *_table(section)]
        lines += [*_peers(section), *_overhead(section), *_typing(section), "", *_inexact(section), *_verdicts(section)]
    return lines


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Return charts of the speed relative to plain decoding, and of clients' waits, by concurrency."""
    drawn = []
    for shape, section in found["daemons"].items():
        drawn += [_speeds(shape, section), _waits(shape, section)]
    return drawn


def _table(section: Mapping[str, Any]) -> list[str]:
    head = ("at once", "", "tokens/s", "first ms 50, 95, 99 %", "whole ms 50, 95, 99 %", "accepted", "cached")
    lines = ["{:>8} {:4}{:>9}{:>24}{:>24}{:>16}{:>8}".format(*head)]
    for cell in section["cells"]:
        for side in ("off", "on"):
            values = cell[side]
            waits = f"{format_percentiles(values['first_ms']):>24}{format_percentiles(values['total_ms']):>24}"
            accepted = f"{values['accepted']} of {values['drafted']}" if values["drafted"] else ""
            share = values["cached_tokens"] / max(1, values["prompt_tokens"])
            start = f"{cell['concurrency']:8} {side:4}{values['tokens_per_second']:9.1f}"
            lines.append(f"{start}{waits}{accepted:>16}{share:8.0%}")
        lines.append(f"{'':14}× {format_ratio(cell['faster'])}; throughput × {cell['throughput']:.3f}")
    return lines


def _peers(section: Mapping[str, Any]) -> list[str]:
    """Return the other servers' figures on the same prompts, and the speed-ups of codespec with speculation."""
    lines = ["", "other servers, the same ids:"] if section["peers"] else []
    for name, facts in section["peers"].items():
        lines.append(f"  {name}: " + ", ".join(str(value) for value in facts.values() if value != ""))
    for cell in section["cells"]:
        for name, row in cell["peers"].items():
            start = f"{cell['concurrency']:8} {name}"
            if "failed" in row:
                lines.append(f"{start} failed: {row['failed']}")
                continue
            waits = f"{format_percentiles(row['first_ms'])} first ms, {format_percentiles(row['total_ms'])} whole ms"
            ours = format_ratio(row["codespec_faster"])
            lines.append(f"{start}: {row['tokens_per_second']:.1f} tokens/s, {waits}; codespec on × {ours}")
    return lines


def _overhead(section: Mapping[str, Any]) -> list[str]:
    lines = ["", "what one client alone waits, ms at 50, 95, 99 %:"] if section["overhead"] else []
    for name, row in section["overhead"].items():
        names = {
            "beyond_engine_ms": "beyond the engine",
            "beyond_steps_ms": "beyond its steps",
            "wire_ms": "on the wire",
        }
        waits = ", ".join(f"{format_percentiles(row[key])} {what}" for key, what in names.items())
        lines.append(f"  {name}, {row['rounds']:.1f} rounds a request: {waits}")
    return lines


def _typing(section: Mapping[str, Any]) -> list[str]:
    typed = section["keystrokes"]
    if typed is None:
        return []
    lines = ["", f"typing in {typed['documents']} long files in turn:"]
    for name in ("cold", "warm"):
        row = typed[name]
        counts = f"{row['requests']:5} requests of {row['prompt_tokens']:.0f} tokens, {row['new_tokens']:.0f} read"
        lines.append(f"  {name}:{counts}; first piece ms at 50, 95, 99 %: {format_percentiles(row['first_ms'])}")
    for name, requests in (("target", typed["warm"]["requests"]), ("drafter", typed["drafter_asked"])):
        if f"{name}_reads_less" in typed:
            times = typed[f"{name}_reads_less"]
            lines.append(
                f"  the {name}, asked at {requests} keystrokes, reads {times:.1f} times less than their prompts"
            )
    return lines


def _inexact(section: Mapping[str, Any]) -> list[str]:
    """Return the number of equal texts in fast mode, in which texts may differ."""
    if section["daemon"]["mode"] == "exact":
        return []
    alike, texts = (sum(cell[name] for cell in section["cells"]) for name in ("texts_alike", "texts"))
    return [f"fast mode is used, near-ties may differ: {alike} of {texts} texts are the same"]


def _verdicts(section: Mapping[str, Any]) -> list[str]:
    verdicts = {}
    for cell in section["cells"]:
        verdicts[f"no loss at {cell['concurrency']} at once"] = cell["no_loss"]
    if section["daemon"]["mode"] == "exact":
        verdicts["every text is the same"] = all(cell["texts"] == cell["texts_alike"] for cell in section["cells"])
    typed = section["keystrokes"]
    if typed is not None and "target_reads_less" in typed:
        enough = typed["target_reads_less"] >= LEAST_READS_LESS
        verdicts[f"a keystroke reads {LEAST_READS_LESS:g} times less"] = enough
        most = section["overhead"]["typing"]["beyond_engine_ms"]["p50"]
        verdicts[f"at most {MOST_OVERHEAD_MS:g} ms beyond the engine's own at half the keystrokes"] = (
            most <= MOST_OVERHEAD_MS
        )
    return verdict_lines(verdicts)


def _speeds(shape: str, section: Mapping[str, Any]) -> Chart:
    bars = [
        Bar(f"{cell['concurrency']} at once", cell["faster"]["ratio"], "best", bounds(cell["faster"]))
        for cell in section["cells"]
    ]
    title = f"Daemon with speculation against without: target as large as {size_of(shape)}"
    return Chart(title, "times as fast at the same concurrency; 95 % bootstrap intervals over places", bars, line=1.0)


def _waits(shape: str, section: Mapping[str, Any]) -> Chart:
    bars = []
    for cell in section["cells"]:
        for side, kind in (("off", "plain"), ("on", "best")):
            waits = cell[side]["first_ms"]
            if waits:
                bars.append(
                    Bar(f"{cell['concurrency']} at once, {side}", waits["p50"], kind, (waits["p50"], waits["p95"]))
                )
    title = f"Until the first piece of text: target as large as {size_of(shape)}"
    return Chart(title, "milliseconds at the client, median and 95th percentile", bars)
