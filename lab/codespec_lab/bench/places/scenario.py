"""`codespec bench places`: what an editor shows at seeded places of published packages, against the text that is there.

Each place is opened in the real language server, with the files beside it, at default settings, and the cursor rests
there. After the warm-up a completion is requested without a deadline. Texts do not depend on the machine's speed,
except through the length of prompts, which the report names.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from codespec_lsp.settings import EditorSettings

from codespec.files import decode_text
from codespec_lab.bench.daemon import connect, own_daemon, run_facts
from codespec_lab.bench.harness import Deadline, Scenario, commit_name, write_json
from codespec_lab.bench.places.packages import fetch, read_packages
from codespec_lab.bench.places.score import imports, score
from codespec_lab.bench.places.sites import Place, find_places
from codespec_lab.bench.places.summary import compare, read_run, report, summarize
from codespec_lab.bench.quality.execution import Executor, demand_limits
from codespec_lab.bench.settings import PlacesBench
from codespec_lab.bench.statistics import percentiles
from codespec_lab.bench.typing.editor import Desktop, open_desktop
from codespec_lab.bench.typing.typist import UNHURRIED_MS, position, shown_text
from codespec_lab.progress import ProgressBar

QUEUE = 16
WARM_UP_SECONDS = 30.0  # after which a place that gets no warm-up is completed anyway
FOLDERS = "workspace/didChangeWorkspaceFolders"


def run_places_bench(bench: PlacesBench) -> dict[str, Any]:
    """Return all figures as plain JSON values; they are kept in the file after each place. Progress goes to stderr."""
    if bench.execute:
        demand_limits()
    before = read_run(bench.against) if bench.against else None
    places = find_places({each: fetch(each) for each in read_packages(bench.held_out)}, bench.count, bench.seed)
    configuration = {"places": len(places), "held_out": bench.held_out, "seed": bench.seed, "execute": bench.execute}
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    found: dict[str, Any] = {"bench": "places", "configuration": configuration}

    def keep(facts: dict[str, Any]) -> None:
        found.update(facts={**facts, "commit": commit_name(), **run_facts(load)}, rows=rows, summary=summarize(rows))
        found["prompt_tokens"] = percentiles([row["prompt_tokens"] for row in rows if row["prompt_tokens"]])
        found["against"] = {"file": bench.against.name, **compare(rows, before)} if bench.against and before else None
        if bench.file is not None:
            write_json(bench.file, found)

    with own_daemon(bench.config, QUEUE) as daemon:
        asyncio.run(_visit(bench, daemon, places, rows, keep))
    return found


async def _visit(
    bench: PlacesBench, daemon: str, places: Sequence[Place], rows: list[dict[str, Any]], keep: Any
) -> None:
    """Score the places in turn while there is time."""
    progress, deadline, executor = ProgressBar("places", len(places)), Deadline(bench.minutes), Executor()
    async with connect(daemon) as client:
        facts = await client.facts()
    async with open_desktop(daemon) as desktop:
        desktop.editor.configure(budgetMs=UNHURRIED_MS)
        for place in places:
            if rows and deadline.too_late(0.0):
                break
            shown, timed = await _show(desktop, place)
            row = {"place": place.name, "language": place.language, "whole_line": place.whole_line}
            row |= {**timed, **score(place, shown)}
            row["imports"] = imports(place, shown, executor) if bench.execute else None
            if not bench.held_out:  # nobody looks at those
                row |= {"written": shown, "expected": place.typed}
            rows.append(row)
            keep(facts)
            progress.advance()


async def _show(desktop: Desktop, place: Place) -> tuple[str, dict[str, Any]]:
    """Return the text that is shown at a place, and the milliseconds to its first piece and the prompt's tokens."""
    editor, proxy = desktop.editor, desktop.proxy
    folder = [{"uri": place.root.as_uri(), "name": place.package.name}]
    editor.notify(FOLDERS, {"event": {"added": folder, "removed": []}})
    warm_ups, streams = proxy.warm_ups, len(proxy.streams)
    for file in place.beside:
        item = {"uri": file.as_uri(), "languageId": place.language, "version": 1}
        editor.notify("textDocument/didOpen", {"textDocument": {**item, "text": decode_text(file.read_bytes())}})
    editor.open(place, place.after(0))
    where = position(place, 0)
    editor.focus(place, where)
    with suppress(TimeoutError):
        async with asyncio.timeout(WARM_UP_SECONDS):
            while proxy.warm_ups == warm_ups:
                await asyncio.sleep(0.02)
    sent = time.perf_counter()
    reply = await editor.complete(place, where, whole=True)[1]
    items = reply["result"]["items"] if "result" in reply else []
    editor.close(place)
    for file in place.beside:
        editor.notify("textDocument/didClose", {"textDocument": {"uri": file.as_uri()}})
    editor.notify(FOLDERS, {"event": {"added": [], "removed": folder}})
    stream = next(iter(proxy.streams[streams:]), None)
    first = stream.first if stream is not None else None
    tokens = stream.prompt_tokens if stream is not None else 0
    waited = (first - sent) * 1000 if first is not None else None
    in_time = float(waited is not None and waited <= EditorSettings().budget_ms)
    timed = {"first_ms": waited, "in_time": in_time, "prompt_tokens": tokens}
    return (shown_text(items[0], where) if items else ""), timed


SCENARIO = Scenario(run_places_bench, report)
