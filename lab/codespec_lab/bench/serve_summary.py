"""Summarize the replies of `codespec bench serve`: throughput, waiting times, the gain from speculation, the cost of a
keystroke, as figures and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec_lab.bench.daemon import PHASES, Pass, Reply
from codespec_lab.bench.report import (
    format_load,
    format_percentiles,
    format_ratio,
    section_title,
    size_of,
    table,
)
from codespec_lab.bench.statistics import percentiles, ratio_interval

COUNTED = ("prompt_tokens", "cached_tokens", "rounds", "drafted", "accepted", "committed")


@dataclass(slots=True)
class Cell:
    """Passes over the same sites at one concurrency, with speculation off and on in turn; `texts` has the first text
    written at each site, at any concurrency.
    """

    concurrency: int
    texts: dict[int, str]
    off: list[tuple[Sequence[int], Pass]] = field(default_factory=list)  # the sites' numbers, and the replies
    on: list[tuple[Sequence[int], Pass]] = field(default_factory=list)

    def add(self, speculate: bool, sites: Sequence[int], done: Pass) -> None:
        """Add one pass."""
        (self.on if speculate else self.off).append((sites, done))
        for site, reply in zip(sites, done.replies, strict=True):
            self.texts.setdefault(site, reply.text)

    def as_dict(self) -> dict[str, Any]:
        """Return both sides and their comparison as plain JSON values.

        With a fixed number of requests in flight, throughput is inversely proportional to a request's mean time
        (Little's law). So `faster` and its interval compare times, paired by site; `throughput` is measured by the
        clock.
        """
        faster = ratio_interval(_seconds(self.off), _seconds(self.on))
        assert faster is not None, "a reply took no time"
        off, on = _side(self.off), _side(self.on)
        same = [text == self.texts[site] for site, text in self._texts()]
        return {
            "concurrency": self.concurrency,
            "off": off,
            "on": on,
            "throughput": on["tokens_per_second"] / off["tokens_per_second"],
            "faster": faster,
            "texts": len(same),
            "texts_alike": sum(same),
        }

    def replies(self, speculate: bool) -> list[Reply]:
        """Return all replies of one side."""
        return [reply for _, done in (self.on if speculate else self.off) for reply in done.replies]

    def _texts(self) -> list[tuple[int, str]]:
        return [
            (site, reply.text)
            for sites, done in (*self.off, *self.on)
            for site, reply in zip(sites, done.replies, strict=True)
        ]


def mismatches(daemons: Mapping[str, Any]) -> list[str]:
    """List the cells in which a site has different texts although the daemon began in exact mode, and the daemons that
    left that mode, as a daemon compares texts itself.
    """
    found = []
    for shape, section in daemons.items():
        if section["daemon"]["mode"] != "exact":
            continue
        for cell in section["cells"]:
            others = cell["texts"] - cell["texts_alike"]
            where = f"{others} of {cell['texts']} texts, {cell['concurrency']} at once, {shape}"
            found += [where] if others else []
        found += [f"the daemon left exact mode, {shape}"] if section["mode_after"] != "exact" else []
    return found


def overhead(replies: Sequence[Reply]) -> dict[str, Any]:
    """Return the milliseconds that single clients waited beyond the engine's steps, beyond steps and prompt building
    (HTTP, scheduling and the work between rounds), and on the wire only.
    """
    return {
        "requests": len(replies),
        "rounds": sum(reply.stats["rounds"] for reply in replies) / max(1, len(replies)),
        "beyond_steps_ms": percentiles([reply.beyond_steps_ms for reply in replies]),
        "beyond_engine_ms": percentiles([reply.beyond_engine_ms for reply in replies]),
        "wire_ms": percentiles([reply.wire_ms for reply in replies]),
    }


def keystrokes(sessions: Sequence[Sequence[Reply]]) -> dict[str, Any]:
    """Return how much of the prompts was prefilled at a file's first request (cold) and at later keystrokes (warm)."""
    cold = [session[0] for session in sessions]
    warm = [reply for session in sessions for reply in session[1:]]
    drafting = sum(reply.stats["drafter_prompt_tokens"] > 0 for reply in warm)
    found = {"documents": len(sessions), "cold": _reading(cold), "warm": _reading(warm), **_reads_less(warm)}
    return {**found, "drafter_asked": drafting}


def _reads_less(warm: Sequence[Reply]) -> dict[str, float]:
    """Return the ratios of prompt tokens to tokens prefilled at a keystroke, for target and drafter."""
    found = {}
    for name, whole, cached in (
        ("target_reads_less", "prompt_tokens", "cached_tokens"),
        ("drafter_reads_less", "drafter_prompt_tokens", "drafter_cached_tokens"),
    ):
        held = sum(reply.stats[whole] for reply in warm)
        read = held - sum(reply.stats[cached] for reply in warm)
        if held:
            found[name] = held / max(1, read)
    return found


def _reading(replies: Sequence[Reply]) -> dict[str, Any]:
    count = max(1, len(replies))
    return {
        "requests": len(replies),
        "prompt_tokens": sum(reply.stats["prompt_tokens"] for reply in replies) / count,
        "new_tokens": sum(reply.stats["prompt_tokens"] - reply.stats["cached_tokens"] for reply in replies) / count,
        "prefill_ms": percentiles([reply.stats["prefill_ms"] for reply in replies]),
        "first_ms": percentiles([reply.first * 1000 for reply in replies if reply.first is not None]),
    }


def _seconds(passes: Sequence[tuple[Sequence[int], Pass]]) -> list[float]:
    """Return the total seconds of requests at each site."""
    sums: dict[int, float] = {}
    for sites, done in passes:
        for site, reply in zip(sites, done.replies, strict=True):
            sums[site] = sums.get(site, 0.0) + reply.total
    return [sums[site] for site in sorted(sums)]


def _side(passes: Sequence[tuple[Sequence[int], Pass]]) -> dict[str, Any]:
    replies = [reply for _, done in passes for reply in done.replies]
    counts = {name: sum(reply.stats[name] for reply in replies) for name in COUNTED}
    return {
        "requests": len(replies),
        "tokens_per_second": counts["committed"] / sum(done.seconds for _, done in passes),
        "first_ms": percentiles([reply.first * 1000 for reply in replies if reply.first is not None]),
        "total_ms": percentiles([reply.total * 1000 for reply in replies]),
        **counts,
        "ms_by_phase": {name: sum(reply.stats[name] for reply in replies) for name in PHASES},
    }


def report(found: Mapping[str, Any]) -> list[str]:
    """Return the report as lines."""
    settings, machine = found["settings"], found["machine"]
    lines = [f"{settings['places']} places, {settings['dtype']}; {format_load(machine)}", machine["processor"]]
    lines += [found["note"]] if found["note"] else []
    for shape, section in found["daemons"].items():
        lines += ["", section_title(size_of(shape)), "", *_table(section)]
        lines += [*_waits_alone(section), *_typed(section), "", _equal_texts(section)]
    return lines


def _table(section: Mapping[str, Any]) -> list[str]:
    waits = "first ms 50, 95, 99 %", "whole ms 50, 95, 99 %"
    rows: list[list[object]] = [["at once", "", "tokens/s", *waits, "accepted", "cached", "× off", "throughput ×"]]
    for cell in section["cells"]:
        for side in ("off", "on"):
            values = cell[side]
            accepted = f"{values['accepted']} of {values['drafted']}" if values["drafted"] else ""
            shown = (format_percentiles(values[name]) for name in ("first_ms", "total_ms"))
            cached = f"{values['cached_tokens'] / max(1, values['prompt_tokens']):.0%}"
            gain = [format_ratio(cell["faster"]), f"{cell['throughput']:.3f}"] if side == "on" else ["", ""]
            speed = f"{values['tokens_per_second']:.1f}"
            rows.append([cell["concurrency"], side, speed, *shown, accepted, cached, *gain])
    return table(rows, left=2)


def _waits_alone(section: Mapping[str, Any]) -> list[str]:
    if not section["overhead"]:
        return []
    names = {"beyond_engine_ms": "beyond the engine", "beyond_steps_ms": "beyond its steps", "wire_ms": "on the wire"}
    rows = [["", "rounds a request", *names.values()]]
    for name, row in section["overhead"].items():
        rows.append([name, f"{row['rounds']:.1f}", *(format_percentiles(row[key]) for key in names)])
    return ["", "waiting time of a single client, ms at 50, 95, 99 %:", *(f"  {line}" for line in table(rows))]


def _typed(section: Mapping[str, Any]) -> list[str]:
    typed = section["keystrokes"]
    if typed is None:
        return []
    lines = ["", f"typing in {typed['documents']} long files in turn:"]
    for name in ("cold", "warm"):
        row = typed[name]
        counts = f"{row['requests']} requests of {row['prompt_tokens']:.0f} tokens, {row['new_tokens']:.0f} read"
        lines.append(f"  {name}: {counts}; first piece ms at 50, 95, 99 %: {format_percentiles(row['first_ms'])}")
    for name, requests in (("target", typed["warm"]["requests"]), ("drafter", typed["drafter_asked"])):
        if f"{name}_reads_less" in typed:
            times = typed[f"{name}_reads_less"]
            lines.append(
                f"  at {requests} keystrokes the {name} reads {times:.1f} times fewer tokens than their prompts have"
            )
    return lines


def _equal_texts(section: Mapping[str, Any]) -> str:
    """Return the number of texts that are the same with and without speculation."""
    same, texts = (sum(cell[name] for cell in section["cells"]) for name in ("texts_alike", "texts"))
    note = "" if section["daemon"]["mode"] == "exact" else " (fast mode: near-ties may differ)"
    return f"{same} of {texts} texts are the same{note}"
