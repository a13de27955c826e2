"""`codespec bench team`: many typists at one daemon, its replicas, or one in front of another server.

The team types once, or with fewer and fewer developers until it fits. A developer types at one site after another and
requests completions as a language server does. Keys and pauses are those of `bench typing`. After each change the
developer waits 50 ms and sends a request over HTTP; the next key closes its connection. While the keys repeat the text
that is shown, nothing is sent. A document's requests carry its `x-session-id`.

A change counts for the limit if the developer pauses for at least 600 ms after it. Pauses come from the typist's model,
not from the daemon, so that slow answers are not left out because the next key cancelled them. A request without an
answer at such a pause counts as one that took the whole pause.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient
from codespec.errors import Absent, ConfigError, DaemonError
from codespec.token_file import read_token
from codespec_lab.bench.daemon import connect, own_daemon, run_facts
from codespec_lab.bench.harness import Figures, Scenario, commit_name
from codespec_lab.bench.report import format_load, format_percentiles, table
from codespec_lab.bench.settings import TeamBench
from codespec_lab.bench.sites import digest
from codespec_lab.bench.statistics import common, percentiles
from codespec_lab.bench.typing.typist import BUDGET_MS, DEBOUNCE, keystrokes, stop
from codespec_lab.bench.typing_sites import TypingSite, body_at, typing_sites
from codespec_lab.progress import ProgressBar

PATIENCE = 60.0  # seconds without a byte of a reply
IN_TIME = BUDGET_MS / 1000
MOST_MS = 1000 * IN_TIME
HIT = 0.5  # share of a prompt that must be cached for a hit: a router that errs finds nothing, an edit a part
SETTLE_SECONDS = 1.0  # between two runs, for cancelled requests to end


@dataclass(slots=True)
class Change:
    """One change of a document, and its outcome. Times are in seconds since the change.

    `pause`     until the next change (None: the last one)
    `sent`      whether a request was sent, and not cancelled by the next change before
    `answered`  until the text was complete (None: never)
    `timely`    characters of the text after IN_TIME that are the ones to be typed; `right` of the last text seen
    `refused`   whether the daemon answered with an error
    `opens`     whether its request is the first for its document
    `cached`    share of the prompt's tokens that the daemon had in its cache (None: not known)
    """

    at: float
    pause: float | None = None
    sent: bool = False
    answered: float | None = None
    timely: int = 0
    right: int = 0
    refused: bool = False
    opens: bool = False
    cached: float | None = None

    @property
    def waits(self) -> bool:
        """Return whether the developer pauses long enough to read an answer in time, or a late one."""
        return self.pause is None or self.pause >= IN_TIME


class Sessions(ProvenConnections):
    """Connections whose requests carry a session id."""

    def name_session(self, session: str) -> None:
        """Set the id of the requests to come."""
        self._headers = {**self._headers, "x-session-id": session}


class Developer:
    """Types at `sites` in turn, beginning with one of its own."""

    def __init__(self, number: int, url: str, sites: Sequence[TypingSite]) -> None:
        self._number, self._sites = number, sites
        try:
            self._connections = Sessions(url, read_token(""), "check --url", patience=PATIENCE, most=4)
        except ValueError as error:
            raise ConfigError(f"{url} is not an address: give one such as http://127.0.0.1:8765.") from error
        self._client = DaemonClient(self._connections)
        self._ghost, self._is_open = "", False
        self.changes: list[Change] = []

    async def type(self, end: float) -> None:
        """Type until `end`, by the clock of `perf_counter`."""
        turn = self._number
        try:
            while time.perf_counter() < end:
                await self._type_at(turn, end)
                turn += 1
        finally:
            await self._client.close()

    async def _type_at(self, turn: int, end: float) -> None:
        site, self._ghost, self._is_open = self._sites[turn % len(self._sites)], "", False
        document = f"{site.name}#{self._number}.{turn}"
        self._connections.name_session(document)
        request: asyncio.Task[None] | None = None
        change: Change | None = None
        try:
            for version, key in enumerate(keystrokes(site.typed, turn)):
                since = change.at if change is not None else time.perf_counter()
                await asyncio.sleep(since + key.wait - time.perf_counter())
                await stop(request)
                now = time.perf_counter()
                if change is not None:
                    change.pause = now - change.at
                if now >= end:
                    return
                change = Change(now)
                self.changes.append(change)
                along = len(self._ghost) > len(key.text) and self._ghost.startswith(key.text)
                self._ghost = self._ghost[len(key.text) :] if along else ""
                left = site.typed[key.end :]
                if along:
                    change.answered = DEBOUNCE
                    change.timely = change.right = common(self._ghost, left)
                else:
                    body = body_at(site, document, version, key.end)
                    request = asyncio.create_task(self._request(change, body, left))
            await asyncio.sleep(IN_TIME)
        finally:
            await stop(request)

    async def _request(self, change: Change, body: dict[str, object], left: str) -> None:
        await asyncio.sleep(change.at + DEBOUNCE - time.perf_counter())
        change.sent, change.opens, self._is_open = True, not self._is_open, True
        try:
            async with aclosing(self._client.events(body)) as events:
                async for name, value in events:
                    spent = time.perf_counter() - change.at
                    if name == "text":
                        self._ghost += value["text"]
                        change.right = common(self._ghost, left)
                        change.timely = change.right if spent <= IN_TIME else change.timely
                    elif name == "done":
                        change.answered = spent
                        tokens = value["cached_tokens"] + value["new_tokens"]
                        change.cached = value["cached_tokens"] / tokens if tokens else None
        except Absent:
            raise
        except DaemonError:
            change.refused = True


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
        "commit": commit_name(),
        **run_facts(load),
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
    except ExceptionGroup as errors:  # all developers fail in the same way
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
    at_least = "at least " if most == found["runs"][-1]["developers"] else ""
    return [*lines, f"{at_least}{most} developers fit within {limit}"]


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "developers": lambda r: f"{r['developers']}",
        "changes, requests": lambda r: f"{r['changes']}, {r['requests']}",
        "requests a second": lambda r: f"{r['requests_a_second']:.1f}",
        "answered from memory": lambda r: f"{r['from_memory'] / max(1, r['changes']):.0%}",
        "requests cancelled, refused": lambda r: f"{r['cancelled']}, {r['refused']}",
        "change → answer ms at 50, 95, 99 %": lambda r: format_percentiles(r["answered_ms"]),
        "pauses of 600 ms or more": lambda r: f"{r['pauses']}",
        "answer at these pauses, ms at 50, 95, 99 %": lambda r: format_percentiles(r["pause_ms"]),
        "answered in time": lambda r: f"{r['in_time']:.0%}",
        "right characters in time, a pause": lambda r: f"{r['right_in_time']:.1f}",
        "share of all right characters": lambda r: _share(r["right_share"]),
        "requests with a cache hit, tokens from the cache": lambda r: (
            f"{_share(r['cache_hits'])}, {_share(r['cached_share'])}"
        ),
    }
    return table([[name, *map(text, runs)] for name, text in rows.items()])


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


SCENARIO = Scenario(run_team_bench, report)
