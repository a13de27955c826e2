"""`codespec bench edits`: what a daemon suggests as the next edit in scenarios and between two releases of packages.

Each case is one request of `POST /v1/codespec/edit` with one place, in turn and without a deadline. The prompts that
the daemon wrote are also given to llama-server, if its folder is named, with its n-gram speculation. Recorded
answers of other models are replayed as drafts, without a model.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from codespec.backends.text_tokenizer import load_tokenizer
from codespec.client.daemon_client import EDIT, DaemonClient
from codespec.errors import ConfigError
from codespec.store.resolve import resolve
from codespec_lab.bench.daemon import connect, own_daemon, run_facts
from codespec_lab.bench.edits.cases import Case, read_scenarios
from codespec_lab.bench.edits.llama import race
from codespec_lab.bench.edits.recordings import replay
from codespec_lab.bench.edits.release_places import release_cases
from codespec_lab.bench.edits.score import edits_of, score
from codespec_lab.bench.edits.summary import report, summarize
from codespec_lab.bench.harness import Deadline, Scenario, commit_name, write_json
from codespec_lab.bench.settings import EditsBench
from codespec_lab.progress import ProgressBar

QUEUE = 4


def run_edits_bench(bench: EditsBench) -> dict[str, Any]:
    """Return all figures as plain JSON values; they are kept in the file after each case. Progress goes to stderr."""
    cases = [*read_scenarios(), *release_cases(bench.archives, bench.limit, bench.seed)]
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    packages = [[old.name, new.name] for old, new in bench.archives]
    configuration = {"cases": len(cases), "pairs": packages, "seed": bench.seed, "speculate": not bench.plain}
    found: dict[str, Any] = {"bench": "edits", "configuration": configuration}

    if bench.recordings is not None:
        found["replays"] = replay(bench.recordings, load_tokenizer(resolve(bench.config.target).folder()))
    commit = commit_name()

    def keep(facts: dict[str, Any]) -> None:
        found.update(facts={**facts, "commit": commit, **run_facts(load)}, rows=rows)
        if bench.file is not None:
            write_json(bench.file, found)

    with own_daemon(bench.config, QUEUE, edit_format=bench.edit_format) as daemon:
        facts = asyncio.run(_visit(bench, daemon, cases, rows, keep))
    if bench.llama_cpp is not None:
        facts["llama_cpp"] = race(bench.config, bench.llama_cpp, facts, cases, rows)
    found["summary"] = summarize(rows)
    keep(facts)
    return found


async def _visit(
    bench: EditsBench, daemon: str, cases: Sequence[Case], rows: list[dict[str, Any]], keep: Any
) -> dict[str, Any]:
    """Score the cases in turn while there is time, and return the daemon's facts. Raises ConfigError if its model has
    no format for edits.
    """
    progress, deadline = ProgressBar("edits", len(cases)), Deadline(bench.minutes)
    async with connect(daemon) as client:
        facts = {**await client.facts(), **await client.edit_facts()}
        if not facts["edit_format"]:
            raise ConfigError("The model has no format for edits: name one by --edit-format, such as chat.")
        for case in cases:
            if rows and deadline.too_late(0.0):
                break
            rows.append(await _ask(client.daemon, case, speculate=not bench.plain))
            keep(facts)
            progress.advance()
    return facts


async def _ask(client: DaemonClient, case: Case, speculate: bool) -> dict[str, Any]:
    """Return a case's scores and what was suggested."""
    edits, first_ms, done, sent = list[tuple[int, int, str]](), None, dict[str, Any](), time.perf_counter()
    async for name, data in client.events(case.body(speculate), path=EDIT):
        if name == "edit":
            first_ms = (time.perf_counter() - sent) * 1000 if first_ms is None else first_ms
            edits.append((data["start_row"], data["end_row"], data["text"]))
        elif name == "done":
            done = data
    total_ms = (time.perf_counter() - sent) * 1000
    stats, answer = done["stats"], edits_of(case.text, edits)
    names = ("prompt_tokens", "cached_tokens", "committed", "rounds", "drafted", "accepted", "decode_ms")
    row = {"case": case.name, "kind": case.kind, "language": case.language, "reason": done["reason"]}
    row |= {"first_ms": first_ms, "total_ms": total_ms, **{name: stats[name] for name in names}}
    row |= score(case, answer, (done["start_row"], done["end_row"]))
    return row | {"window": [done["start_row"], done["end_row"]], "answer": [list(hunk) for hunk in answer]}


SCENARIO = Scenario(run_edits_bench, report)
