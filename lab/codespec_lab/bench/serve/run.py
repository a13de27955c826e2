"""`codespec bench serve`: a real daemon under load, with speculation off and on in turn on one engine, and a typist in
long files.

All sites are selected by rule from held-out code, or taken from a prompts file.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any

from codespec.config import EngineConfig
from codespec.errors import ConfigError
from codespec.progress import ProgressBar
from codespec.types import MOST_SIDE
from codespec_lab.bench.daemon import Client, Reply, connect, machine_facts, own_daemon, version_facts
from codespec_lab.bench.serve.peers import Load, PeerPasses, ServePeers, serve_peers
from codespec_lab.bench.serve.summary import Cell, keystrokes, overhead
from codespec_lab.bench.sites import Site, TypingSite, prompt_sites, read_held_out_code
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import line_gaps, spread

# (speculation, half of the sites). Between two visits of a site come all sites of the other half, whichever side is
# next: the caches hold as much of its prompt for both sides, and its text has left the memory of recent texts, where
# the second side would otherwise find the first side's text.
ORDER = ((True, 0), (False, 1), (False, 0), (True, 1))
DOCUMENTS = 4  # files to type in
TYPED_TOKENS = 16
LEAST_LINE = 12  # characters of a line to type


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench:
    """The settings: `limit` sites in each half, `tokens` tokens a completion.

    The daemon is the one at `url`, or is started for the pair as it is and, with `shape`, also as if its target had
    that size. `llama_cpp` is the folder of a llama-server to use instead of the package's.
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
    llama_cpp: Path | None = None


def run_serve_bench(bench: ServeBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Progress goes to stderr."""
    sites, note = find_sites(bench.held_out, bench.prompts, 2 * bench.limit)
    typed = find_typing_sites(bench.held_out, DOCUMENTS)
    load = os.getloadavg()[0]
    sections = {}
    for shape in ("own", *([bench.shape] if bench.shape else [])):
        with _daemon(bench, shape) as address:
            sections[shape] = asyncio.run(_section(bench, address, shape, sites, typed))
    return {
        "date": date.today().isoformat(),
        "machine": machine_facts(load),
        "versions": version_facts(),
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


def find_sites(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[Site], str]:
    """Return `count` sites and a note for the report: lines in all languages in turn, with text on both sides, or a
    file's prompts, evenly spread. Raise TrainingError or ConfigError for a file that can't be read or is too short.
    """
    if prompts is not None:
        sites, note = prompt_sites(prompts, count), "prompts of a file"
    else:
        held_out_code = read_held_out_code(held_out)
        each, note = math.ceil(count / len(held_out_code.rows)), held_out_code.note
        gaps = (spread(documents, each, line_gaps(0)) for documents in held_out_code.rows.values())
        in_turn = (gap for turn in zip_longest(*gaps) for gap in turn if gap is not None)
        sites = [Site(gap.prefix, gap.suffix, gap.path) for gap in islice(in_turn, count)]
    if len(sites) < 2:
        raise ConfigError("There are fewer than two places to complete: name a file with more.")
    return sites, note


def keystroke_bodies(site: TypingSite, keystrokes: int) -> Iterator[dict[str, Any]]:
    """Yield one request per keystroke, as an editor sends it: the text typed so far, and the lines below."""
    for version in range(min(keystrokes, site.end - site.begin)):
        cursor = site.begin + version
        start = max(0, cursor - MOST_SIDE)
        yield {
            "document": site.name,
            "version": version,
            "path": site.name,
            "prefix": site.text[start:cursor],
            "prefix_offset": start,
            "suffix": site.text[site.end : site.end + MOST_SIDE],
        }


def find_typing_sites(held_out: Path | None, count: int) -> list[TypingSite]:
    """Return sites in the longest files of the held-out code, the longest of each language first. The line to type is
    the first long one from the middle of the file.
    """
    rows = read_held_out_code(held_out).rows.values()
    longest_first = (sorted(documents, key=lambda d: (-len(d.text), d.path)) for documents in rows)
    files = (document for turn in zip_longest(*longest_first) for document in turn if document is not None)
    found = (site for document in files if (site := _typing_site(document)) is not None)
    return list(islice(found, count))


def _typing_site(document: Document) -> TypingSite | None:
    lines = document.text.splitlines(keepends=True)
    for number in range(len(lines) // 2, len(lines)):
        body = lines[number].strip()
        if len(body) >= LEAST_LINE:
            begin = sum(map(len, lines[:number])) + lines[number].index(body)
            name = f"{document.package}/{document.path}"
            return TypingSite(name, document.language, document.text, begin, begin + len(body))
    return None
