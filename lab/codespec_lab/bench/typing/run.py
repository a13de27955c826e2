"""`codespec bench typing`: a typist in held-out files, through the real language server and real daemons.

Two daemons with a language server each run without and with speculation, so that neither finds the other's texts. The
typist types at every site once with each, in turn, the same keys at the same times; at separate sites Tab is pressed
too. Each session is written to the results file at once, and a later run of the same command continues from there.

The typist's view depends on the clock, so texts are compared separately: at the end both daemons complete the same
sites without a time limit. The sites are lines in the middle of held-out files, selected by rule, or the last lines of
prompts.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any

from codespec_grammars import find_language

from codespec.config import EngineConfig
from codespec.errors import ConfigError
from codespec.models.processor import processor
from codespec.progress import ProgressBar
from codespec_lab.bench.daemon import connect, machine_facts, own_daemon, version_facts
from codespec_lab.bench.results import Deadline, Results, commit_name
from codespec_lab.bench.sites import Site, TypingSite, read_held_out_code, read_prompts, spread_numbers
from codespec_lab.bench.typing.editor import Editor, language_server
from codespec_lab.bench.typing.proxy import Proxy, proxy_of
from codespec_lab.bench.typing.summary import OFF, ON, TAKING, record, summarize
from codespec_lab.bench.typing.typist import complete_unhurried, keystrokes, type_site
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import COMMENTS

QUEUE = 16
MOST_PROBES = 4  # repeated requests per site, of those with empty answers
COMPARED_TOKENS = 32  # of a text that both daemons write
COMPARED_SIDE = 4000  # characters: about as much as the prompt of an editor's request on two cores
LINES = 3  # lines to type at a site
CHARACTERS = (60, 180)  # least and most characters to type at a site
LEAST_ABOVE = 20  # lines above a site
MOST_UNIT = "\uffff"  # the last character that is one UTF-16 unit


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingBench:
    """The settings: `limit` pairs of sites, `pace` times as fast as the published typist. No round begins that would
    end after `minutes`.
    """

    config: EngineConfig
    held_out: Path | None = None
    prompts: Path | None = None
    file: Path | None = None
    limit: int = 12
    pace: float = 1.0
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Desktop:
    """An editor, and the proxy between its language server and its daemon."""

    editor: Editor
    proxy: Proxy


@dataclass(frozen=True, slots=True)
class SitePair:
    """Two sites: at one the typist types without and with speculation, at the other with speculation and Tab."""

    number: int
    compared: TypingSite
    taken: TypingSite

    @property
    def jobs(self) -> list[tuple[str, TypingSite]]:
        """Return the sessions as (cell, site); the order of the two sides alternates from pair to pair."""
        sides = (OFF, ON) if self.number % 2 == 0 else (ON, OFF)
        return [*((side, self.compared) for side in sides), (TAKING, self.taken)]


def run_typing_bench(bench: TypingBench) -> dict[str, Any]:
    """Return all figures so far as plain JSON values. Progress goes to stderr."""
    sites, note = find_typing_sites(bench.held_out, bench.prompts, 2 * bench.limit)
    results = Results(bench.file, "typing")
    section = results.section(bench.config.target_shape, _configuration(bench, sites))
    load = os.getloadavg()[0]
    with (
        own_daemon(replace(bench.config, speculate=False), QUEUE) as plain,
        own_daemon(replace(bench.config, speculate=True), QUEUE) as speculating,
    ):
        daemons = {OFF: plain, ON: speculating}
        modes = asyncio.run(_modes(daemons))
        asyncio.run(_type(bench, results, section, sites, daemons))
        section["texts"] = asyncio.run(_compare(section, sites, daemons))
        section["texts"] |= {"modes": modes, "modes_after": asyncio.run(_modes(daemons))}
    section |= {"note": note, "facts": _facts(load), "summary": summarize(section["passes"])}
    results.write()
    return results.values


async def _type(
    bench: TypingBench,
    results: Results,
    section: dict[str, Any],
    sites: Sequence[TypingSite],
    daemons: dict[str, str],
) -> None:
    """Run the missing sessions while there is time."""
    done = {(session["cell"], session["place"]) for session in section["passes"]}
    pairs = [SitePair(number, *pair) for number, pair in enumerate(zip(sites[::2], sites[1::2], strict=False))]
    progress = ProgressBar(f"type {bench.config.target_shape}", sum(len(pair.jobs) for pair in pairs))
    deadline = Deadline(bench.minutes)
    async with _desktop(daemons[OFF]) as plain, _desktop(daemons[ON]) as speculating:
        for pair in pairs:
            left = [job for job in pair.jobs if (job[0], job[1].name) not in done]
            progress.advance(len(pair.jobs) - len(left))
            if left and deadline.too_late(_expected_seconds(bench, pair)):
                break
            for cell, site in left:
                desktop = plain if cell == OFF else speculating
                section["passes"].append(await _session(bench, desktop, cell, site, pair.number))
                results.write()
                progress.advance()


async def _modes(daemons: dict[str, str]) -> dict[str, str]:
    """Return the mode of each daemon."""
    found = {}
    for name, address in daemons.items():
        async with connect(address) as client:
            found[name] = (await client.facts())["mode"]
    return found


async def _compare(section: dict[str, Any], sites: Sequence[TypingSite], daemons: dict[str, str]) -> dict[str, Any]:
    """Compare the daemons' texts at the sites where both were used. Return the count and the sites that differ."""
    typed = {session["place"] for session in section["passes"] if session["cell"] != TAKING}
    compared = [site for site in sites if site.name in typed]
    async with connect(daemons[OFF]) as off, connect(daemons[ON]) as on:
        differing = []
        for site in compared:
            body = {
                "prefix": site.text[max(0, site.begin - COMPARED_SIDE) : site.begin],
                "suffix": site.text[site.end :][:COMPARED_SIDE],
                "path": site.name,
                "shape": "raw",
                "max_tokens": COMPARED_TOKENS,
            }
            if (await off.complete(body)).text != (await on.complete(body)).text:
                differing.append(site.name)
    return {"compared": len(compared), "differing": differing}


@asynccontextmanager
async def _desktop(daemon: str) -> AsyncIterator[Desktop]:
    async with proxy_of(daemon) as proxy, language_server(proxy.url) as editor:
        yield Desktop(editor, proxy)


async def _session(bench: TypingBench, desktop: Desktop, cell: str, site: TypingSite, seed: int) -> dict[str, Any]:
    """Type at one site, and repeat some of the requests with empty answers without a time limit."""
    keys = keystrokes(site.typed, seed, bench.pace)
    found = record(await type_site(desktop.editor, desktop.proxy, site, keys, taking=cell == TAKING), site)
    first = [row for row in found["questions"] if row["cause"] != "more" and row["answered_ms"] is not None]
    empty = [row["at"] for row in first if not row["length"]]
    chosen = empty[:: max(1, -(-len(empty) // MOST_PROBES))]
    unhurried = {at: len(await complete_unhurried(desktop.editor, site, at)) for at in chosen}
    return {"cell": cell, **found, "unhurried": {str(at): length for at, length in unhurried.items()}}


def _expected_seconds(bench: TypingBench, pair: SitePair) -> float:
    """Return the approximate duration of a pair's sessions; Tab makes them shorter."""
    return sum(key.wait for _, site in pair.jobs for key in keystrokes(site.typed, pair.number, bench.pace))


def _configuration(bench: TypingBench, sites: Sequence[TypingSite]) -> dict[str, Any]:
    names = ("dtype", "drafter_dtype", "mode", "proposers", "policy", "threads", "context", "device")
    digest = hashlib.blake2b(repr(sites).encode(), digest_size=8).hexdigest()
    settings = {name: getattr(bench.config, name) for name in names}
    found = {**settings, "pace": bench.pace, "places": len(sites), "texts": digest}
    return {**found, "processor": processor().label}


def _facts(load: float) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "commit": commit_name(),
        "machine": machine_facts(load),
        "versions": version_facts(),
    }


def find_typing_sites(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[TypingSite], str]:
    """Return up to `count` sites and a note for the report: files in all languages in turn, or a file's prompts. Raise
    TrainingError or ConfigError for a file that can't be read or has no site.
    """
    if prompts is not None:
        given = read_prompts(prompts)
        chosen = (_in_prompt(given[number], number) for number in spread_numbers(len(given), count))
        sites, note = [site for site in chosen if site is not None], "prompts of a file: their last lines are typed"
    else:
        code = read_held_out_code(held_out)
        rows = [_in_documents(documents, math.ceil(count / len(code.rows))) for documents in code.rows.values()]
        sites, note = [site for turn in zip_longest(*rows) for site in turn if site is not None][:count], code.note
    if not sites:
        raise ConfigError("There is no place to type in: name a file with longer texts.")
    return sites, note


def _in_documents(documents: Sequence[Document], count: int) -> list[TypingSite]:
    """Return one site in each of `count` files, evenly spread over the documents."""
    found = [site for document in documents if (site := _in_document(document)) is not None]
    return [found[number] for number in spread_numbers(len(found), count)]


def _in_document(document: Document) -> TypingSite | None:
    """Return the first LINES lines of code, from the middle of the file, with a total length within CHARACTERS."""
    lines = document.text.splitlines(keepends=True)
    if "\r" in document.text:
        return None
    name = f"{document.package}/{document.path}".replace(":", "/")
    for number in range(max(LEAST_ABOVE, len(lines) // 2), len(lines) - LINES):
        site = _at(name, document.language, lines, number)
        if site is not None and CHARACTERS[0] <= len(site.typed) <= CHARACTERS[1]:
            return site
    return None


def _at(name: str, language: str, lines: Sequence[str], number: int) -> TypingSite | None:
    """Return LINES lines from a line's first character, or None if one is empty, a comment, or needs surrogates."""
    chosen = lines[number : number + LINES]
    bodies = [line.strip() for line in chosen]
    if any(not body or body.startswith(COMMENTS) or max(body) > MOST_UNIT for body in bodies):
        return None
    first = len(chosen[0]) - len(chosen[0].lstrip())
    begin = sum(map(len, lines[:number])) + first
    end = begin + len("".join(chosen)) - first
    return TypingSite(name, language, "".join(lines), begin, end - chosen[-1].endswith("\n"))


def _in_prompt(prompt: Site, number: int) -> TypingSite | None:
    """Return a prompt's last lines, or None if it has too few."""
    lines = prompt.prefix.splitlines(keepends=True)
    if len(lines) <= LINES or "\r" in prompt.prefix:
        return None
    name = f"prompt{number}/{prompt.path or 'prompt.py'}"
    return _at(name, find_language("", name), [*lines, prompt.suffix], len(lines) - LINES)
