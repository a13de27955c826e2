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
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codespec.store.machine import processor
from codespec_lab.bench.daemon import connect, own_daemon, run_facts
from codespec_lab.bench.harness import Deadline, Figures, Results, Scenario, commit_name
from codespec_lab.bench.report import (
    format_load,
    format_percentiles,
    format_ratio,
    section_title,
    size_of,
    table,
)
from codespec_lab.bench.settings import TypingBench
from codespec_lab.bench.sites import digest
from codespec_lab.bench.typing.editor import Desktop, open_desktop
from codespec_lab.bench.typing.summary import OFF, ON, TAKING, both_exact, mismatches, record, summarize
from codespec_lab.bench.typing.typist import complete_unhurried, keystrokes, type_site
from codespec_lab.bench.typing_sites import TypingSite, typing_sites
from codespec_lab.progress import ProgressBar

NAMES = {OFF: "off", ON: "on", TAKING: "on, with Tab"}
QUEUE = 16
MAX_PROBES = 4  # repeated requests per site, of those with empty answers
COMPARED_TOKENS = 32  # of a text that both daemons write
COMPARED_SIDE = 4000  # characters: about as much as the prompt of an editor's request on two cores


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
    sites, note = typing_sites(bench.held_out, bench.prompts, 2 * bench.limit)
    results = Results(bench.file, "typing")
    section = results.section(bench.target_shape, _configuration(bench, sites))
    load = os.getloadavg()[0]
    try:
        with (
            own_daemon(replace(bench.config, speculate=False), QUEUE) as plain,
            own_daemon(replace(bench.config, speculate=True), QUEUE) as speculating,
        ):
            daemons = {OFF: plain, ON: speculating}
            modes = asyncio.run(_modes(daemons))
            asyncio.run(_type(bench, results, section, sites, daemons))
            section["texts"] = asyncio.run(_compare(section, sites, daemons))
            section["texts"] |= {"modes": modes, "modes_after": asyncio.run(_modes(daemons))}
    finally:  # also when the user interrupts it: the finished sessions are kept with their summary
        if section["passes"]:
            facts = {"commit": commit_name(), **run_facts(load)}
            section |= {"note": note, "facts": facts, "summary": summarize(section["passes"])}
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
    if all((cell, site.name) in done for pair in pairs for cell, site in pair.jobs):
        return
    progress = ProgressBar(f"type {bench.target_shape}", sum(len(pair.jobs) for pair in pairs))
    deadline = Deadline(bench.minutes)
    async with open_desktop(daemons[OFF]) as plain, open_desktop(daemons[ON]) as speculating:
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


async def _session(bench: TypingBench, desktop: Desktop, cell: str, site: TypingSite, seed: int) -> dict[str, Any]:
    """Type at one site, and repeat some of the requests with empty answers without a time limit."""
    keys = keystrokes(site.typed, seed, bench.pace)
    found = record(await type_site(desktop.editor, desktop.proxy, site, keys, taking=cell == TAKING), site)
    first = [row for row in found["questions"] if row["cause"] != "more" and row["answered_ms"] is not None]
    empty = [row["at"] for row in first if not row["length"]]
    chosen = empty[:: max(1, -(-len(empty) // MAX_PROBES))]
    unhurried = {at: len(await complete_unhurried(desktop.editor, site, at)) for at in chosen}
    return {"cell": cell, **found, "unhurried": {str(at): length for at, length in unhurried.items()}}


def _expected_seconds(bench: TypingBench, pair: SitePair) -> float:
    """Return the approximate duration of a pair's sessions; Tab makes them shorter."""
    return sum(key.wait for _, site in pair.jobs for key in keystrokes(site.typed, pair.number, bench.pace))


def _configuration(bench: TypingBench, sites: Sequence[TypingSite]) -> dict[str, Any]:
    names = ("dtype", "drafter_dtype", "mode", "proposers", "policy", "threads", "context", "device")
    settings = {name: getattr(bench.config, name) for name in names}
    found = {**settings, "pace": bench.pace, "places": len(sites), "texts": digest(sites)}
    return {**found, "processor": processor().label}


def report(found: Figures) -> list[str]:
    """Return the report as lines."""
    lines: list[str] = []
    for shape, section in found["sections"].items():
        if "summary" not in section:
            continue
        machine, settings, cells = section["facts"]["machine"], section["configuration"], section["summary"]["cells"]
        lines += [section_title(size_of(shape)), ""]
        lines += [f"{settings['dtype']}, pace {settings['pace']:g}; {format_load(machine)}", machine["processor"]]
        lines += [section["note"]] if section["note"] else []
        lines += ["", *_table(cells), "", "time in the language server, ms at 50, 95, 99 %:", *_own_ms(cells)]
        lines += [*_available(section["summary"]["available"]), *_texts(section.get("texts")), ""]
    return lines


def _table(cells: Mapping[str, Any]) -> list[str]:
    rows: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "typed, characters in seconds": lambda c: f"{c['characters']} in {c['seconds']:.0f}",
        "inserted by Tab": lambda c: f"{c['taken']}",
        "requests, superseded": lambda c: f"{c['questions']}, {c['superseded']}",
        "change → answer ms at 50, 95, 99 %": lambda c: format_percentiles(c["answer_ms"]),
        "the same after Tab": lambda c: format_percentiles(c["after_tab_ms"]),
        "answered without a new request, without work": lambda c: (
            f"{c['without_request']:.0%}, {c['without_work']:.0%}"
        ),
        "answers cut by the clock": lambda c: f"{c['cut']:.1%}",
        "right characters shown per request, per second": lambda c: (
            f"{c['matching_per_question']:.2f}, {c['matching_per_second']:.2f}"
        ),
        "tokens written, wasted": lambda c: f"{c['tokens']}, {c['wasted']:.0%}",
        "empty answers, of these repeated, not empty then": lambda c: (
            f"{c['empty']}, {c['asked_again']}, {c['empty_in_haste_only']}"
        ),
        "answers with text, of those with text without a time limit": lambda c: f"{c['as_unhurried']:.1%}",
    }
    names = ["", *(NAMES[cell] for cell in cells)]
    return table([names, *([name, *map(text, cells.values())] for name, text in rows.items())])


def _own_ms(cells: Mapping[str, Any]) -> list[str]:
    rows = [["", "requests", "both ways", "to the daemon", "back", "from memory"]]
    for cell, values in cells.items():
        own = values["overhead"]
        times = (format_percentiles(own[name]) for name in ("both", "there", "back", "remembered"))
        rows.append([NAMES[cell], str(own["questions"]), *times])
    return [f"  {line}" for line in table(rows)]


def _available(values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return []
    start = (
        f"characters 600 ms after a change, {values['pauses']} pauses: median {values['off']:g} and {values['on']:g}"
    )
    ratios = [
        f"× {format_ratio(ratio, 2)} {name}"
        for name, ratio in (("of the medians", values["median_ratio"]), ("of the sums", values["sum_ratio"]))
        if ratio
    ]
    return ["", f"{start}; {', '.join(ratios)}" if ratios else start]


def _texts(values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return []
    same = values["compared"] - len(values["differing"])
    note = "" if both_exact(values) else " (fast mode is used: differences are near-ties)"
    return [f"without a time limit, both daemons write the same text at {same} of {values['compared']} places{note}"]


SCENARIO = Scenario(run_typing_bench, report, lambda found: mismatches(found["sections"]))
