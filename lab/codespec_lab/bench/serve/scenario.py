"""`codespec bench serve`: a real daemon under load, with speculation off and on in turn on one engine, and a typist in
long files.

All sites are selected by rule from held-out code, or taken from a prompts file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

from codespec_lab.bench.daemon import Client, Reply, connect, own_daemon, run_facts
from codespec_lab.bench.harness import Figures, Scenario
from codespec_lab.bench.report import (
    Bar,
    Chart,
    bounds,
    format_load,
    format_percentiles,
    format_ratio,
    section_title,
    size_of,
    table,
    verdict_lines,
)
from codespec_lab.bench.serve.peers import Load, PeerPasses, ServePeers, serve_peers
from codespec_lab.bench.serve.summary import Cell, keystrokes, mismatches, overhead
from codespec_lab.bench.settings import ServeBench
from codespec_lab.bench.sites import Site, serve_sites
from codespec_lab.bench.typing_sites import TypingSite, keystroke_bodies, keystroke_sites
from codespec_lab.progress import ProgressBar

# (speculation, half of the sites). Between two visits of a site come all sites of the other half, whichever side is
# next: the caches hold as much of its prompt for both sides, and its text has left the memory of recent texts, where
# the second side would otherwise find the first side's text.
ORDER = ((True, 0), (False, 1), (False, 0), (True, 1))
LEAST_READS_LESS, MOST_OVERHEAD_MS = 5.0, 3.0
DOCUMENTS = 4  # files to type in
TYPED_TOKENS = 16


def run_serve_bench(bench: ServeBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Progress goes to stderr."""
    sites, note = serve_sites(bench.held_out, bench.prompts, 2 * bench.limit)
    typed = keystroke_sites(bench.held_out, DOCUMENTS)
    load = os.getloadavg()[0]
    sections = {}
    for shape in ("own", *([bench.shape] if bench.shape else [])):
        with _daemon(bench, shape) as address:
            sections[shape] = asyncio.run(_section(bench, address, shape, sites, typed))
    return {
        **run_facts(load),
        "note": note,
        "settings": {
            **{name: getattr(bench.config, name) for name in ("dtype", "drafter_dtype", "policy", "threads")},
            "places": len(sites),
            "tokens": bench.tokens,
            "repeats": bench.repeats,
            "keystrokes": bench.keystrokes,
        },
        "daemons": sections,
    }


def _daemon(bench: ServeBench, shape: str) -> AbstractContextManager[str]:
    """Return a daemon with slots for the largest concurrency, or the one at `url` with its own slots."""
    if bench.url:
        return nullcontext(bench.url)
    most = max(bench.concurrency)
    return own_daemon(replace(bench.config, target_shape=shape, max_batch=most), queue=most)


async def _section(
    bench: ServeBench, address: str, shape: str, sites: Sequence[Site], typing: Sequence[TypingSite]
) -> dict[str, Any]:
    """Return all figures of one daemon."""
    async with connect(address) as client:
        facts, texts = await client.facts(), dict[int, str]()
        passes = len(bench.concurrency) * bench.repeats * len(ORDER)
        typed = sum(len(list(keystroke_bodies(site, bench.keystrokes))) for site in typing)
        progress = ProgressBar(f"serve {shape}", len(sites) * (1 + passes // 2) + typed)
        bodies = _bodies(sites, bench.tokens)
        # Train the policy before any measurement.
        await client.closed_loop([{**body, "speculate": True} for body in bodies], 1, progress.advance)
        cells = [Cell(concurrency, texts) for concurrency in bench.concurrency]
        load = Load(sites, bench.tokens, max(bench.concurrency), facts["context"])
        with _peers(bench, shape, load) as peers:
            others = {cell.concurrency: dict[str, PeerPasses]() for cell in cells}
            for cell, _ in product(cells, range(bench.repeats)):
                await _measure(cell, client, bodies, progress.advance)
                if peers is not None:
                    await _measure_peers(peers, others[cell.concurrency], cell.concurrency)
            found_peers = peers.facts() if peers is not None else {}
        sessions = await _type(client, bench, typing, progress.advance)
        mode_after = (await client.facts())["mode"]
    alone = next((cell for cell in cells if cell.concurrency == 1), None)
    found: dict[str, Any] = {
        "daemon": facts,
        "simulated": shape if shape != "own" else "",
        "mode_after": mode_after,
        "cells": [cell.as_dict() for cell in cells],
        "keystrokes": keystrokes(sessions) if typed else None,
        "peers": found_peers,
    }
    for cell, row in zip(cells, found["cells"], strict=True):
        row["peers"] = {name: one.as_dict(cell.seconds_on()) for name, one in others[cell.concurrency].items()}
    overheads = {name: alone.replies(name == "on") for name in ("off", "on")} if alone else {}
    overheads["typing"] = [reply for session in sessions for reply in session[1:]]
    found["overhead"] = {name: overhead(replies) for name, replies in overheads.items() if replies}
    return found


def _bodies(sites: Sequence[Site], tokens: int) -> list[dict[str, Any]]:
    """Return the requests: each text ends at the target's end token, or after `tokens` tokens."""
    return [
        {"prefix": site.prefix, "suffix": site.suffix, "path": site.path, "shape": "raw", "max_tokens": tokens}
        for site in sites
    ]


def _peers(bench: ServeBench, shape: str, load: Load) -> AbstractContextManager[ServePeers | None]:
    """Return the peers if the daemon is our own; None for another daemon, whose model files are unknown."""
    config = replace(bench.config, target_shape=shape)
    return nullcontext() if bench.url else serve_peers(config, load, bench.llama_cpp)


async def _measure_peers(peers: ServePeers, passes: dict[str, PeerPasses], together: int) -> None:
    """Run one pass of every peer."""
    progress = ProgressBar(f"peers, {together} at once", peers.requests)
    for contestant in peers.contestants:
        own = passes.setdefault(contestant.name, PeerPasses())
        await asyncio.to_thread(peers.measure, contestant, own, together, progress.advance)


async def _measure(
    cell: Cell, client: Client, bodies: Sequence[Mapping[str, Any]], advance: Callable[[], None]
) -> None:
    """Run one repeat at one concurrency."""
    middle = len(bodies) // 2
    halves = (range(middle), range(middle, len(bodies)))
    for speculate, half in ORDER:
        requests = [{**bodies[number], "speculate": speculate} for number in halves[half]]
        cell.add(speculate, halves[half], await client.closed_loop(requests, cell.concurrency, advance))


async def _type(
    client: Client, bench: ServeBench, typing: Sequence[TypingSite], advance: Callable[[], None]
) -> list[list[Reply]]:
    """Type in all files in turn, one character each. Return a list of replies for each file."""
    requests = [list(keystroke_bodies(site, bench.keystrokes)) for site in typing]
    sessions: list[list[Reply]] = [[] for _ in typing]
    for turn in range(bench.keystrokes):
        for bodies, session in zip(requests, sessions, strict=True):
            if turn < len(bodies):
                body = {**bodies[turn], "shape": "line", "max_tokens": TYPED_TOKENS}
                session.append(await client.complete(body))
                advance()
    return sessions


def report(found: Figures) -> list[str]:
    """Return the report as lines."""
    settings, machine = found["settings"], found["machine"]
    lines = [f"{settings['places']} places, {settings['dtype']}; {format_load(machine)}", machine["processor"]]
    lines += [found["note"]] if found["note"] else []
    for shape, section in found["daemons"].items():
        lines += ["", section_title(size_of(shape)), "", *_table(section), *_other_servers(section)]
        lines += [*_waits_alone(section), *_typed(section), "", *_inexact(section), *_verdicts(section)]
    return lines


def charts(found: Figures) -> list[Chart]:
    """Return charts of the speed relative to plain decoding, and of clients' waits, by concurrency."""
    drawn = []
    for shape, section in found["daemons"].items():
        size, speeds, waits = f"target as large as {size_of(shape)}", [], []
        for cell in section["cells"]:
            name = f"{cell['concurrency']} at once"
            speeds.append(Bar(name, cell["faster"]["ratio"], "best", bounds(cell["faster"])))
            for side, kind in (("off", "plain"), ("on", "best")):
                if first := cell[side]["first_ms"]:
                    waits.append(Bar(f"{name}, {side}", first["p50"], kind, (first["p50"], first["p95"])))
        note = "times as fast at the same concurrency; 95 % bootstrap intervals over places"
        drawn.append(Chart(f"Daemon with speculation against without: {size}", note, speeds, line=1.0))
        note = "milliseconds at the client, median and 95th percentile"
        drawn.append(Chart(f"Until the first piece of text: {size}", note, waits))
    return drawn


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


def _other_servers(section: Mapping[str, Any]) -> list[str]:
    """Return the other servers' figures on the same prompts, and the speed-ups of codespec with speculation."""
    lines = ["", "other servers, the same ids:"] if section["peers"] else []
    for name, facts in section["peers"].items():
        lines.append(f"  {name}: " + ", ".join(str(value) for value in facts.values() if value != ""))
    for cell in section["cells"]:
        for name, row in cell["peers"].items():
            start = f"  {cell['concurrency']} at once, {name}"
            if "failed" in row:
                lines.append(f"{start} failed: {row['failed']}")
                continue
            waits = f"{format_percentiles(row['first_ms'])} first ms, {format_percentiles(row['total_ms'])} whole ms"
            ours = format_ratio(row["codespec_faster"])
            lines.append(f"{start}: {row['tokens_per_second']:.1f} tokens/s, {waits}; codespec on × {ours}")
    return lines


def _waits_alone(section: Mapping[str, Any]) -> list[str]:
    if not section["overhead"]:
        return []
    names = {"beyond_engine_ms": "beyond the engine", "beyond_steps_ms": "beyond its steps", "wire_ms": "on the wire"}
    rows = [["", "rounds a request", *names.values()]]
    for name, row in section["overhead"].items():
        rows.append([name, f"{row['rounds']:.1f}", *(format_percentiles(row[key]) for key in names)])
    return ["", "what one client alone waits, ms at 50, 95, 99 %:", *(f"  {line}" for line in table(rows))]


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
    verdicts = {f"no loss at {cell['concurrency']} at once": cell["no_loss"] for cell in section["cells"]}
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


SCENARIO = Scenario(run_serve_bench, report, charts, lambda found: mismatches(found["daemons"]))
