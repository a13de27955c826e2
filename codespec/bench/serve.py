"""`codespec bench serve`: a real daemon under load, speculation off and on in turn on one engine, and somebody typing.

Knows the order of things; the parts know how.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codespec.bench.prompts import BenchPrompt
from codespec.bench.serve_client import Client, Reply, connect
from codespec.bench.serve_daemon import own_daemon
from codespec.bench.serve_places import Typing, find_places, find_typing
from codespec.bench.serve_summary import Cell, keystrokes, overhead
from codespec.config import EngineConfig
from codespec.models.processor import processor
from codespec.progress import ProgressBar

# Both halves of the places are completed off and on. Between two visits of a place lie all places of the other half,
# whichever side comes next: what the caches still hold of its prompt is the same for both, and its text has left the
# memory of recent ones, where the second side would find what the first wrote.
ORDER = ((True, 0), (False, 1), (False, 0), (True, 1))
DOCUMENTS = 4
TYPED_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench:
    """What is to be measured: `limit` places in each half, `tokens` a completion, by the daemon at `url` or one of its
    own, with the pair as it is and, with `shape`, as if its target were that large.
    """

    config: EngineConfig
    url: str = ""
    held_out: Path | None = None
    prompts: Path | None = None
    limit: int = 40
    tokens: int = 64
    concurrency: Sequence[int] = (1, 4, 8, 16, 32)
    repeats: int = 1
    keystrokes: int = 32
    shape: str = ""


def run_serve_bench(bench: ServeBench) -> dict[str, Any]:
    """The whole bench; all figures as plain JSON values. Progress goes to stderr."""
    places, note = find_places(bench.held_out, bench.prompts, 2 * bench.limit)
    typing = find_typing(bench.held_out, DOCUMENTS)
    load = os.getloadavg()[0]
    sections = {}
    for shape in ("own", *([bench.shape] if bench.shape else [])):
        with _daemon(bench, shape) as address:
            sections[shape] = asyncio.run(_section(bench, address, shape, places, typing))
    return {
        "date": date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "processor": processor().label, "load": [load, os.getloadavg()[0]]},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "note": note,
        "settings": {
            **{name: getattr(bench.config, name) for name in ("dtype", "drafter_dtype", "policy", "threads")},
            "places": len(places),
            "tokens": bench.tokens,
            "repeats": bench.repeats,
            "keystrokes": bench.keystrokes,
        },
        "daemons": sections,
    }


def _daemon(bench: ServeBench, shape: str) -> AbstractContextManager[str]:
    """A daemon with room for the largest concurrency, or the one at `url`, which has what it has."""
    if bench.url:
        return nullcontext(bench.url)
    most = max(bench.concurrency)
    return own_daemon(replace(bench.config, target_shape=shape, max_batch=most), queue=most)


async def _section(
    bench: ServeBench, address: str, shape: str, places: Sequence[BenchPrompt], typing: Sequence[Typing]
) -> dict[str, Any]:
    """Everything for one daemon."""
    async with connect(address) as client:
        facts, texts = await client.facts(), dict[int, str]()
        passes = len(bench.concurrency) * bench.repeats * len(ORDER)
        typed = sum(len(list(document.bodies(bench.keystrokes))) for document in typing)
        steps = ProgressBar(f"serve {shape}", len(places) * (1 + passes // 2) + typed)
        bodies = _bodies(places, bench.tokens)
        await client.closed_loop([{**body, "speculate": True} for body in bodies], 1, steps.advance)  # it learns
        cells = [Cell(concurrency, texts) for concurrency in bench.concurrency]
        for cell in cells:
            await _fill(cell, client, bodies, bench.repeats, steps.advance)
        sessions = await _type(client, bench, typing, steps.advance)
        mode_after = (await client.facts())["mode"]
    alone = next((cell for cell in cells if cell.concurrency == 1), None)
    found: dict[str, Any] = {
        "daemon": facts,
        "simulated": shape if shape != "own" else "",
        "mode_after": mode_after,
        "cells": [cell.as_dict() for cell in cells],
        "keystrokes": keystrokes(sessions) if typed else None,
    }
    overheads = {name: alone.replies(name == "on") for name in ("off", "on")} if alone else {}
    overheads["typing"] = [reply for session in sessions for reply in session[1:]]
    found["overhead"] = {name: overhead(replies) for name, replies in overheads.items() if replies}
    return found


def _bodies(places: Sequence[BenchPrompt], tokens: int) -> list[dict[str, Any]]:
    """The requests: each text ends where the target ends it, or after so many tokens."""
    return [
        {"prefix": place.prefix, "suffix": place.suffix, "path": place.path, "shape": "raw", "max_tokens": tokens}
        for place in places
    ]


async def _fill(
    cell: Cell, client: Client, bodies: Sequence[Mapping[str, Any]], repeats: int, advance: Callable[[], None]
) -> None:
    """All passes at one concurrency."""
    middle = len(bodies) // 2
    halves = (range(middle), range(middle, len(bodies)))
    for speculate, half in ORDER * repeats:
        asked = [{**bodies[place], "speculate": speculate} for place in halves[half]]
        cell.add(speculate, halves[half], await client.closed_loop(asked, cell.concurrency, advance))


async def _type(
    client: Client, bench: ServeBench, typing: Sequence[Typing], advance: Callable[[], None]
) -> list[list[Reply]]:
    """Somebody types in all files in turn, a character each; a list of replies a file."""
    asked = [list(document.bodies(bench.keystrokes)) for document in typing]
    sessions: list[list[Reply]] = [[] for _ in typing]
    for turn in range(bench.keystrokes):
        for bodies, session in zip(asked, sessions, strict=True):
            if turn < len(bodies):
                body = {**bodies[turn], "shape": "line", "max_tokens": TYPED_TOKENS}
                session.append(await client.complete(body))
                advance()
    return sessions
