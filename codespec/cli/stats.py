"""`codespec stats`: show a running daemon's counters and the learned acceptance rates, or reset the latter.

The daemon's numbers are those of its /metrics. Learned state is read from the user's state folder, where engines save
it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from codespec.cli import stats_table
from codespec.cli.daemon_call import Address, add_address_options, find_address
from codespec.client.daemon_client import Found
from codespec.errors import ConfigError
from codespec.speculation.store import LearnedRow, forget, learned_folder, learned_rows

ABSENT = {
    "nobody": "No daemon answers at {url}: `codespec serve` starts one.",
    "locked": "The daemon at {url} requires its token: give --token-file, or set CODESPEC_SERVE_TOKEN.",
    "stranger": "The program at {url} can't prove that it is your daemon: check --url, or restart the daemon.",
    "silent": "The program at {url} does not answer like a daemon: check --url, or look with `codespec doctor`.",
}
STILL_KNOWN = "The daemon at {url} would save its learned state again when it stops: stop it, then reset."


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stats",
        help="show a daemon's counters and the learned acceptance rates",
        description="Shows the counters of a running daemon, and the recent acceptance rates by context and proposer.",
        allow_abbrev=False,
    )
    add_address_options(parser)
    parser.add_argument(
        "--reset", action="store_true", help="delete the learned state of every pair; a daemon's counters go on"
    )
    parser.add_argument("--by", choices=("key",), help="show the daemon's usage by key instead: requests and tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the tables, or reset the learned state and print the number of pairs; return 0."""
    address = find_address(options)
    found = address.look()
    if options.reset:
        removed = _forget()
        print(json.dumps({"forgotten": removed}) if options.json else f"forgotten: {removed} pair(s)")
        if found.who == "daemon":
            _note(STILL_KNOWN.format(url=address.url))
        return 0
    if found.who in ABSENT:
        _note(ABSENT[found.who].format(url=address.url))
    notes: list[str] = []
    rows = learned_rows(notes)
    for note in notes:
        _note(note)
    if options.json:
        print(json.dumps({**_as_json(address, found), "learned": [asdict(row) for row in rows]}))
    else:
        by_key = stats_table.render_keys(found.stats) if found.who == "daemon" else []
        print("\n".join(by_key if options.by else [*_daemon_lines(address, found), *render(rows)]))
    return 0


def _note(sentence: str) -> None:
    print(f"codespec: {sentence}", file=sys.stderr)


def _as_json(address: Address, found: Found) -> dict[str, Any]:
    if found.who != "daemon":
        return {"daemon": None, "families": []}
    return {"daemon": {"url": address.url, **found.daemon}, "families": found.stats["families"]}


def _daemon_lines(address: Address, found: Found) -> list[str]:
    if found.who != "daemon":
        return []
    daemon = found.daemon
    model = daemon.get("model") or "no model yet"
    head = f"daemon {address.url}: codespec {daemon['version']}, {daemon['state']}, {model}; since it began:"
    notes = [f"note: {note}" for note in daemon.get("notes", [])]
    if upstream := daemon.get("upstream"):
        notes.insert(0, upstream_line(upstream))
    if kernel := daemon.get("kernel"):
        notes.insert(0, f"kernel: {kernel}")
    return [head, *notes, "", *stats_table.render(found.stats), "", f"learned, from {learned_folder()}:", ""]


def upstream_line(upstream: Mapping[str, Any]) -> str:
    """Return the line about the server that writes for a daemon."""
    fills = f"fills in {upstream['fill_in']}" if upstream.get("fill_in") else "does not fill in"
    state = f"circuit {upstream['circuit']}"
    if upstream.get("failures"):
        state += f" ({upstream['failures']} failures in a row: {upstream['reason']})"
    return f"upstream: {upstream['url']}, {fills}, {state}"


def render(rows: Sequence[LearnedRow]) -> list[str]:
    """Return the table, grouped by pair."""
    if not rows:
        return ["nothing was learned yet"]
    lines = []
    for pair in dict.fromkeys(row.pair for row in rows):
        lines += [f"pair {pair}", f"{'proposer':<14}{'context':<14}{'judged':>8}{'right':>8}"]
        for row in rows:
            if row.pair == pair:
                where = f"{row.source:<14}{row.context or 'any':<14}"
                lines.append(f"{where}{row.judged:>8.0f}{100 * row.chance:>6.0f} %")
    return lines


def _forget() -> int:
    try:
        return forget()
    except OSError as error:
        raise ConfigError(
            f"The learned state can't be removed from {learned_folder()} ({error.strerror})", "make the folder writable"
        ) from error
