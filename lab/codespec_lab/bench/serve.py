"""`codespec bench serve`: a real daemon under load, with speculation off and on in turn on one engine, and a typist in
long files.

All sites are selected by rule from held-out code, or taken from a prompts file. llama.cpp's server is measured under
the same load: the daemon's prompts as the same ids, from the same number of clients. Each server keeps its prompt cache
on, as in normal use.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from codespec.contract.engine_config import EngineConfig
from codespec.store.resolve import resolve
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.daemon import Client, Reply, connect, own_daemon, run_facts
from codespec_lab.bench.decode.contest import Variant
from codespec_lab.bench.decode.llama_cpp import LlamaContestant, LlamaFamily
from codespec_lab.bench.harness import Scenario
from codespec_lab.bench.llama_server import Completion, LlamaServerError
from codespec_lab.bench.serve_summary import Cell, charts, keystrokes, mismatches, overhead, report
from codespec_lab.bench.settings import ServeBench
from codespec_lab.bench.sites import Site, serve_sites
from codespec_lab.bench.statistics import percentiles, ratio_interval
from codespec_lab.bench.typing_sites import TypingSite, keystroke_bodies, keystroke_sites
from codespec_lab.progress import ProgressBar

# (speculation, half of the sites). Between two visits of a site come all sites of the other half, whichever side is
# next: the caches hold as much of its prompt for both sides, and its text has left the memory of recent texts, where
# the second side would otherwise find the first side's text.
ORDER = ((True, 0), (False, 1), (False, 0), (True, 1))
DOCUMENTS = 4  # files to type in
TYPED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """The sites, the token limit of a text, the most clients at once, and the daemon's context."""

    sites: Sequence[Site]
    tokens: int
    slots: int
    context: int


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt, and the ids that end its text."""

    ids: tuple[int, ...]
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Waited:
    """One answer: the client's seconds until the first and the last id, the tokens of text, and the prompt tokens that
    were computed and that came from the cache.
    """

    first: float
    total: float
    tokens: int
    read: int
    cached: int


@dataclass(slots=True)
class PeerPasses:
    """All passes of one contestant at one concurrency: the answers by site and the passes' seconds, or the error."""

    seconds: float = 0.0
    by_site: dict[int, list[Waited]] = field(default_factory=dict)
    failed: str = ""

    def as_dict(self, ours: Sequence[float]) -> dict[str, Any]:
        """Return the figures; `ours` are codespec's seconds at each site, for the same number of passes."""
        if self.failed:
            return {"failed": self.failed}
        answers = [answer for site in sorted(self.by_site) for answer in self.by_site[site]]
        theirs = [sum(answer.total for answer in self.by_site[site]) for site in sorted(self.by_site)]
        return {
            "requests": len(answers),
            "tokens_per_second": sum(answer.tokens for answer in answers) / self.seconds,
            "first_ms": percentiles([answer.first * 1000 for answer in answers]),
            "total_ms": percentiles([answer.total * 1000 for answer in answers]),
            "cached": sum(one.cached for one in answers) / max(1, sum(one.cached + one.read for one in answers)),
            "codespec_faster": ratio_interval(theirs, ours),
        }


class ServePeers:
    """The contestants that can run, the prompts as ids, and the reasons why others are absent."""

    def __init__(self, config: EngineConfig, load: Load, folder: Path | None) -> None:
        self._tokens = load.tokens
        tokenizer = TextTokenizer.from_folder(resolve(config.target).folder())
        self._prompts = [_prompt(tokenizer, site, load.context - load.tokens) for site in load.sites]
        room = max(len(prompt.ids) for prompt in self._prompts) + load.tokens
        self._family = LlamaFamily(config, load.slots, room, folder)
        self._threads = config.threads or len(os.sched_getaffinity(0))
        self.absent: dict[str, str] = dict(self._family.absent)

    @property
    def contestants(self) -> list[LlamaContestant]:
        """Return the contestants that can run."""
        return self._family.runnable

    @property
    def requests(self) -> int:
        """Return the number of requests in one pass of all contestants."""
        return len(self.contestants) * len(self._prompts)

    def facts(self) -> dict[str, Any]:
        """Return each contestant's program, options and threads, and the reasons why others are absent."""
        run = {one.name: {**one.facts(self._variant(one)), "threads": self._threads} for one in self.contestants}
        return run | {name: {"absent": reason} for name, reason in self.absent.items()}

    def measure(
        self, contestant: LlamaContestant, passes: PeerPasses, together: int, advance: Callable[[], None]
    ) -> None:
        """Send all prompts once, `together` at a time. Record a failure in `passes`."""

        def ask(number: int) -> Waited:
            began = time.perf_counter()
            prompt = self._prompts[number]
            done = server.complete(prompt.ids, self._tokens, prompt.ends, cached=True)
            advance()
            return _waited(done, began)

        if passes.failed:
            return
        try:
            server = contestant.server(self._variant(contestant))
            began = time.perf_counter()
            with ThreadPoolExecutor(together) as pool:
                answers = list(pool.map(ask, range(len(self._prompts))))
            passes.seconds += time.perf_counter() - began
        except LlamaServerError as error:
            passes.failed = str(error)
            return
        for number, answer in enumerate(answers):
            passes.by_site.setdefault(number, []).append(answer)

    def close(self) -> None:
        """Stop the servers."""
        self._family.close()

    def _variant(self, contestant: LlamaContestant) -> Variant:
        return replace(contestant.variants()[0], threads=self._threads)


@contextmanager
def serve_peers(config: EngineConfig, load: Load, folder: Path | None) -> Iterator[ServePeers]:
    """Yield the peers, and stop their servers when the block ends."""
    peers = ServePeers(config, load, folder)
    try:
        yield peers
    finally:
        peers.close()


def _prompt(tokenizer: TextTokenizer, site: Site, budget: int) -> PromptIds:
    """Return the daemon's prompt for a site, and the ids that end its text."""
    template = find_template(tokenizer)
    fills_in = bool(site.suffix) and not isinstance(template, FimMissing)
    prompt = build_prompt(
        tokenizer,
        None if isinstance(template, FimMissing) else template,
        prefix=site.prefix,
        suffix=site.suffix,
        path=site.path,
        budget=budget,
    )
    return PromptIds(tuple(prompt.ids), tokenizer.eos_ids if fills_in else tokenizer.model_eos_ids)


def _waited(done: Completion, began: float) -> Waited:
    timings = done.timings
    read, cached = (timings.prompt_tokens, timings.cached_tokens) if timings else (0, 0)
    return Waited(done.arrived[0] - began, done.ended - began, len(done.ids), read, cached)


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


SCENARIO = Scenario(run_serve_bench, report, charts, lambda found: mismatches(found["daemons"]))
