"""`codespec bench serve`: a real daemon under load, with speculation off and on in turn on one engine, and a typist in
long files.

All sites are selected by rule from held-out code, or taken from a prompts file. The daemon uses its prompt cache as in
normal use.
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
from codespec_lab.bench.harness import Scenario
from codespec_lab.bench.serve_summary import Cell, keystrokes, mismatches, overhead, report
from codespec_lab.bench.settings import ServeBench
from codespec_lab.bench.shapes import OWN
from codespec_lab.bench.sites import Site, serve_sites
from codespec_lab.bench.typing_sites import TypingSite, keystroke_bodies, keystroke_sites
from codespec_lab.progress import ProgressBar

# (speculation, half of the sites). Between two visits of a site come all sites of the other half, whichever side is
# next: the caches hold as much of its prompt for both sides, and its text has left the memory of recent texts, where
# the second side would otherwise find the first side's text.
ORDER = ((True, 0), (False, 1), (False, 0), (True, 1))
DOCUMENTS = 4  # files to type in
TYPED_TOKENS = 16


def run_serve_bench(bench: ServeBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Progress goes to stderr."""
    sites, note = serve_sites(bench.held_out, bench.prompts, 2 * bench.limit)
    typed = keystroke_sites(bench.held_out, DOCUMENTS)
    load, shape = os.getloadavg()[0], bench.target_shape
    with _daemon(bench) as address:
        section = asyncio.run(_section(bench, address, sites, typed))
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
        "daemons": {shape: section},
    }


def _daemon(bench: ServeBench) -> AbstractContextManager[str]:
    """Return a daemon with slots for the largest concurrency, or the one at `url` with its own slots."""
    if bench.url:
        return nullcontext(bench.url)
    most = max(bench.concurrency)
    return own_daemon(replace(bench.config, max_batch=most), queue=most)


async def _section(
    bench: ServeBench, address: str, sites: Sequence[Site], typing: Sequence[TypingSite]
) -> dict[str, Any]:
    """Return all figures of one daemon."""
    async with connect(address) as client:
        facts, texts = await client.facts(), dict[int, str]()
        passes = len(bench.concurrency) * bench.repeats * len(ORDER)
        typed = sum(len(list(keystroke_bodies(site, bench.keystrokes))) for site in typing)
        progress = ProgressBar("serve", len(sites) * (1 + passes // 2) + typed)
        bodies = _bodies(sites, bench.tokens)
        # Train the policy before any measurement.
        await client.closed_loop([{**body, "speculate": True} for body in bodies], 1, progress.advance)
        cells = [Cell(concurrency, texts) for concurrency in bench.concurrency]
        for cell, _ in product(cells, range(bench.repeats)):
            await _measure(cell, client, bodies, progress.advance)
        sessions = await _type(client, bench, typing, progress.advance)
        mode_after = (await client.facts())["mode"]
    alone = next((cell for cell in cells if cell.concurrency == 1), None)
    found: dict[str, Any] = {
        "daemon": facts,
        "simulated": "" if bench.target_shape == OWN else bench.target_shape,
        "mode_after": mode_after,
        "cells": [cell.as_dict() for cell in cells],
        "keystrokes": keystrokes(sessions) if typed else None,
    }
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


SCENARIO = Scenario(run_serve_bench, report, lambda found: mismatches(found["daemons"]))
