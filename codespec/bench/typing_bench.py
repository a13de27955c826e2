"""`codespec bench typing`: somebody types in held-out files, through the real language server and real daemons.

Two daemons with a language server each, one without speculation and one with it, so that neither finds what the other
wrote: every place is typed in once with each, in turn, the same keys at the same times; at places of their own Tab is
pressed too. What was typed is kept at once, and a later run of the same command goes on from there. What somebody sees
depends on the clock, so texts are compared apart: at the end both daemons are asked outright, with all the time they
want. Knows the order of things; the parts know how.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codespec.bench.decode_sheet import Sheet, commit_name
from codespec.bench.serve_client import connect
from codespec.bench.serve_daemon import own_daemon
from codespec.bench.typing_editor import Editor, language_server
from codespec.bench.typing_hand import strike
from codespec.bench.typing_places import TypingPlace, find_typing_places, in_turn
from codespec.bench.typing_records import record
from codespec.bench.typing_session import ask_unhurried, type_place
from codespec.bench.typing_summary import OFF, ON, TAKING, summarize
from codespec.bench.typing_tap import Tap, tapped
from codespec.config import EngineConfig
from codespec.models.processor import processor
from codespec.progress import ProgressBar

QUEUE = 16
MOST_PROBES = 4  # empty answers of a place that are asked for again
COMPARED_TOKENS = 32  # of a text that is asked for outright
COMPARED_SIDE = 4000  # characters: as much as an editor's question has read on two cores


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingBench:
    """What is to be typed: at `limit` pairs of places, `pace` times as fast as the published typist. No round is begun
    that would end behind so many `minutes`."""

    config: EngineConfig
    held_out: Path | None = None
    prompts: Path | None = None
    file: Path | None = None
    limit: int = 12
    pace: float = 1.0
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Desktop:
    """An editor, and what stands between its language server and its daemon."""

    editor: Editor
    tap: Tap


@dataclass(frozen=True, slots=True)
class Round:
    """Two places: one is typed in without and with speculation, one with Tab as well."""

    number: int
    compared: TypingPlace
    taken: TypingPlace

    @property
    def jobs(self) -> list[tuple[str, TypingPlace]]:
        """What is to be done; who comes first changes from round to round."""
        sides = (OFF, ON) if self.number % 2 == 0 else (ON, OFF)
        return [*((side, self.compared) for side in sides), (TAKING, self.taken)]


def run_typing_bench(bench: TypingBench) -> dict[str, Any]:
    """Everything that is known now, as plain JSON values. Progress goes to stderr."""
    places, note = find_typing_places(bench.held_out, bench.prompts, 2 * bench.limit)
    sheet = Sheet(bench.file, "typing")
    section = sheet.section(bench.config.target_shape, _configuration(bench, places))
    load = os.getloadavg()[0]
    with (
        own_daemon(replace(bench.config, speculate=False), QUEUE) as plain,
        own_daemon(replace(bench.config, speculate=True), QUEUE) as guessing,
    ):
        daemons = {OFF: plain, ON: guessing}
        modes = asyncio.run(_modes(daemons))
        asyncio.run(_type(bench, sheet, section, places, daemons))
        section["texts"] = asyncio.run(_compare(section, places, daemons))
        section["texts"] |= {"modes": modes, "modes_after": asyncio.run(_modes(daemons))}
    section |= {"note": note, "facts": _facts(load), "summary": summarize(section["passes"])}
    sheet.write()
    return sheet.values


async def _type(
    bench: TypingBench, sheet: Sheet, section: dict[str, Any], places: Sequence[TypingPlace], daemons: dict[str, str]
) -> None:
    """Types what is not typed yet, while there is time."""
    done = {(session["cell"], session["place"]) for session in section["passes"]}
    rounds = [Round(number, *pair) for number, pair in enumerate(in_turn(places, 2))]
    steps = ProgressBar(f"type {bench.config.target_shape}", sum(len(each.jobs) for each in rounds))
    begun = time.monotonic()
    async with _desktop(daemons[OFF]) as plain, _desktop(daemons[ON]) as guessing:
        for each in rounds:
            left = [job for job in each.jobs if (job[0], job[1].name) not in done]
            steps.advance(len(each.jobs) - len(left))
            if bench.minutes and left and time.monotonic() - begun + _seconds(bench, each) > 60 * bench.minutes:
                break
            for cell, place in left:
                desktop = plain if cell == OFF else guessing
                section["passes"].append(await _session(bench, desktop, cell, place, each.number))
                sheet.write()
                steps.advance()


async def _modes(daemons: dict[str, str]) -> dict[str, str]:
    """The modes in effect."""
    found = {}
    for name, address in daemons.items():
        async with connect(address) as client:
            found[name] = (await client.facts())["mode"]
    return found


async def _compare(section: dict[str, Any], places: Sequence[TypingPlace], daemons: dict[str, str]) -> dict[str, Any]:
    """Whether both daemons write the same where somebody typed with both."""
    typed = {session["place"] for session in section["passes"] if session["cell"] != TAKING}
    compared = [place for place in places if place.name in typed]
    async with connect(daemons[OFF]) as off, connect(daemons[ON]) as on:
        differing = []
        for place in compared:
            body = {
                "prefix": place.text[max(0, place.begin - COMPARED_SIDE) : place.begin],
                "suffix": place.text[place.end :][:COMPARED_SIDE],
                "path": place.name,
                "shape": "raw",
                "max_tokens": COMPARED_TOKENS,
            }
            if (await off.complete(body)).text != (await on.complete(body)).text:
                differing.append(place.name)
    return {"compared": len(compared), "differing": differing}


@asynccontextmanager
async def _desktop(daemon: str) -> AsyncIterator[Desktop]:
    async with tapped(daemon) as tap, language_server(tap.url) as editor:
        yield Desktop(editor, tap)


async def _session(bench: TypingBench, desktop: Desktop, cell: str, place: TypingPlace, seed: int) -> dict[str, Any]:
    """One place typed in, and some of its empty answers asked for again without haste."""
    keys = strike(place.typed, seed, bench.pace)
    found = record(await type_place(desktop.editor, desktop.tap, place, keys, taking=cell == TAKING), place)
    first = [row for row in found["questions"] if row["cause"] != "more" and row["answered_ms"] is not None]
    empty = [row["at"] for row in first if not row["length"]]
    chosen = empty[:: max(1, -(-len(empty) // MOST_PROBES))]
    unhurried = {at: len(await ask_unhurried(desktop.editor, place, at)) for at in chosen}
    return {"cell": cell, **found, "unhurried": {str(at): length for at, length in unhurried.items()}}


def _seconds(bench: TypingBench, each: Round) -> float:
    """How long a round takes, about: with Tab it is shorter."""
    return sum(key.wait for _, place in each.jobs for key in strike(place.typed, each.number, bench.pace))


def _configuration(bench: TypingBench, places: Sequence[TypingPlace]) -> dict[str, Any]:
    names = ("dtype", "drafter_dtype", "mode", "proposers", "policy", "threads", "context", "device")
    digest = hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()
    settings = {name: getattr(bench.config, name) for name in names}
    found = {**settings, "pace": bench.pace, "places": len(places), "texts": digest}
    return {**found, "processor": processor().label}


def _facts(load: float) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "commit": commit_name(),
        "machine": {"cores": os.cpu_count(), "processor": processor().label, "load": [load, os.getloadavg()[0]]},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
