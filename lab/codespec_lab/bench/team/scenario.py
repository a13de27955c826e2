"""Run a team of typists, once or with fewer and fewer until it fits, and report waiting times.

A change counts for the limit if the developer pauses for at least 600 ms after it. Pauses come from the typist's model,
not from the daemon, so that slow answers are not left out because the next key cancelled them. A request without an
answer at such a pause counts as one that took the whole pause.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from codespec_lab.bench.daemon import connect, machine_facts, own_daemon, version_facts
from codespec_lab.bench.harness import Figures, Scenario, commit_name
from codespec_lab.bench.report import format_load, format_percentiles, table
from codespec_lab.bench.sites import digest
from codespec_lab.bench.statistics import percentiles
from codespec_lab.bench.team.settings import TeamBench
from codespec_lab.bench.team.typist import IN_TIME, Change, Developer
from codespec_lab.bench.typing_sites import TypingSite, typing_sites
from codespec_lab.progress import ProgressBar

MOST_MS = 1000 * IN_TIME
HIT = 0.5  # share of a prompt that must be cached for a hit: a router that errs finds nothing, an edit a part
SETTLE_SECONDS = 1.0  # between two runs, for cancelled requests to end


def run_team_bench(bench: TeamBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Progress goes to stderr."""
    sites, note = typing_sites(bench.held_out, bench.prompts, bench.developers)
    load = os.getloadavg()[0]
    if bench.url:
        found = asyncio.run(_measure(bench, bench.url, sites))
    else:
        with own_daemon(bench.config, bench.queue) as url:
            found = asyncio.run(_measure(bench, url, sites))
    return {
        "bench": "team",
        "date": date.today().isoformat(),
        "commit": commit_name(),
        "machine": machine_facts(load),
        "versions": version_facts(),
        "settings": {
            "seconds": bench.seconds,
            "places": len(sites),
            "texts": digest(sites),
            "queue": None if bench.url else bench.queue,
            "own": not bench.url,
        },
        "note": note,
        **found,
    }


async def _measure(bench: TeamBench, url: str, sites: Sequence[TypingSite]) -> dict[str, Any]:
    async with connect(url) as client:
        daemon = await client.facts()
    runs: dict[int, dict[str, Any]] = {}

    async def fits(developers: int) -> bool:
        if runs:
            await asyncio.sleep(SETTLE_SECONDS)
        runs[developers] = await run_team(url, sites, developers, bench.seconds)
        return bool(runs[developers]["fits"])

    whole = await fits(bench.developers)
    most = bench.developers if whole else None
    if bench.find and not whole:
        most = await largest(fits, bench.developers)
    return {"daemon": daemon, "runs": [runs[number] for number in sorted(runs)], "most": most, "found": bench.find}


async def largest(fits: Callable[[int], Any], above: int) -> int:
    """Return the largest number below `above` that fits, by bisection; 0 if none does."""
    low, high = 0, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await fits(middle) else (low, middle)
    return low


async def run_team(url: str, sites: Sequence[TypingSite], developers: int, seconds: float) -> dict[str, Any]:
    """Let a team type; return its figures. The developers begin one after another, within one pause of a typist."""
    team = [Developer(number, url, sites) for number in range(developers)]
    progress = ProgressBar(f"{developers} developers", int(seconds))
    begun = time.perf_counter()

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            progress.advance()

    async def begin(number: int, developer: Developer) -> None:
        await asyncio.sleep(number / developers)
        await developer.type(begun + seconds)

    ticking = asyncio.create_task(tick())
    try:
        async with asyncio.TaskGroup() as group:
            for number, developer in enumerate(team):
                group.create_task(begin(number, developer))
    except ExceptionGroup as errors:  # those of many developers are alike
        raise errors.exceptions[0] from errors
    finally:
        ticking.cancel()
    spent = time.perf_counter() - begun
    return figures([change for developer in team for change in developer.changes], developers, spent)


def figures(changes: Sequence[Change], developers: int, seconds: float) -> dict[str, Any]:
    """Return a run's figures as plain JSON values; times are in ms from a change to the end of its text."""
    sent = [change for change in changes if change.sent]
    waited = [change for change in changes if change.waits and (change.sent or change.answered is not None)]
    times = percentiles([1000 * waiting_time(change) for change in waited])
    right = sum(change.right for change in waited)
    cached = [change.cached for change in sent if change.cached is not None and not change.opens]
    return {
        "developers": developers,
        "seconds": seconds,
        "changes": len(changes),
        "requests": len(sent),
        "requests_a_second": len(sent) / seconds,
        "from_memory": sum(change.answered is not None and not change.sent for change in changes),
        "cancelled": sum(change.answered is None and not change.refused for change in sent),
        "refused": sum(change.refused for change in sent),
        "answered_ms": percentiles([1000 * change.answered for change in sent if change.answered is not None]),
        "pauses": len(waited),
        "pause_ms": times,
        "in_time": sum(waiting_time(change) <= IN_TIME for change in waited) / max(1, len(waited)),
        "right_in_time": sum(change.timely for change in waited) / max(1, len(waited)),
        "right_share": sum(change.timely for change in waited) / right if right else None,
        "cached_share": sum(cached) / len(cached) if cached else None,
        "cache_hits": sum(share >= HIT for share in cached) / len(cached) if cached else None,
        "fits": bool(times) and times["p95"] <= MOST_MS,
    }


def waiting_time(change: Change) -> float:
    """Return the seconds from a change to its answer; without one, the whole pause, and at least more than allowed."""
    if change.answered is not None:
        return change.answered
    return max(change.pause or 0.0, IN_TIME + 0.001)


def report(found: Figures) -> list[str]:
    """Return the report as lines."""
    machine, settings, daemon = found["machine"], found["settings"], found["daemon"]
    where = "a daemon of its own" if settings["own"] else "the daemon at --url"
    lines = [f"{daemon['model']}, {daemon['mode']} mode, {daemon['slots']} slots; {where}; {format_load(machine)}"]
    lines += [machine["processor"], *([found["note"]] if found["note"] else []), "", *_table(found["runs"]), ""]
    limit, most = f"{MOST_MS:.0f} ms at 95 % of the pauses", found["most"]
    if most is None:
        return [
            *lines,
            f"{found['runs'][-1]['developers']} developers do not fit within {limit}; --find finds how many do",
        ]
    most_asked = found["runs"][-1]["developers"]
    return [*lines, f"{'at least ' if most == most_asked else ''}{most} developers fit within {limit}"]


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "developers": lambda r: f"{r['developers']}",
        "changes, requests": lambda r: f"{r['changes']}, {r['requests']}",
        "requests a second": lambda r: f"{r['requests_a_second']:.1f}",
        "answered from memory": lambda r: f"{r['from_memory'] / max(1, r['changes']):.0%}",
        "requests cancelled, refused": lambda r: f"{r['cancelled']}, {r['refused']}",
        "change → answer ms at 50, 95, 99 %": lambda r: format_percentiles(r["answered_ms"]),
        "pauses of 600 ms or more": lambda r: f"{r['pauses']}",
        "at these, ms at 50, 95, 99 %": lambda r: format_percentiles(r["pause_ms"]),
        "answered in time": lambda r: f"{r['in_time']:.0%}",
        "right characters in time, a pause": lambda r: f"{r['right_in_time']:.1f}",
        "of those that came at all": lambda r: _share(r["right_share"]),
        "found their document in a cache, tokens from it": lambda r: (
            f"{_share(r['cache_hits'])}, {_share(r['cached_share'])}"
        ),
    }
    return table([[name, *map(text, runs)] for name, text in rows.items()])


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


SCENARIO = Scenario(run_team_bench, report)
