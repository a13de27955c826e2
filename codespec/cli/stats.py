"""`codespec stats`: what was learned about which guesses are right, and how to forget it. Knows tables and terminals.

Counters of running requests belong to the daemon's `/metrics`; this reads what engines kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from codespec.control.learned import forget, learned_folder
from codespec.control.overview import LearnedRow, learned_rows
from codespec.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Adds the command and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stats",
        help="show or forget what was learned about drafts",
        description="Shows, by context and proposer, how often drafted tokens were right lately.",
        allow_abbrev=False,
    )
    parser.add_argument("--reset", action="store_true", help="forget what was learned about every pair")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the table, or forgets and says of how many pairs; returns 0."""
    if options.reset:
        removed = _forget()
        print(json.dumps({"forgotten": removed}) if options.json else f"forgotten: {removed} pair(s)")
        return 0
    notes: list[str] = []
    rows = learned_rows(notes)
    for note in notes:
        print(f"codespec: {note}", file=sys.stderr)
    if options.json:
        print(json.dumps({"learned": [asdict(row) for row in rows]}))
    else:
        print("\n".join(render(rows)))
    return 0


def render(rows: Sequence[LearnedRow]) -> list[str]:
    """The table, pair by pair."""
    if not rows:
        return ["nothing was learned yet"]
    lines = []
    for pair in dict.fromkeys(row.pair for row in rows):
        lines += [f"pair {pair}", f"{'proposer':<14}{'context':<14}{'language':<12}{'judged':>8}{'right':>8}"]
        for row in rows:
            if row.pair == pair:
                where = f"{row.source:<14}{row.context or 'any':<14}{row.language or 'any':<12}"
                lines.append(f"{where}{row.judged:>8.0f}{100 * row.chance:>6.0f} %")
    return lines


def _forget() -> int:
    try:
        return forget()
    except OSError as error:
        raise ConfigError(
            f"What was learned can't be removed from {learned_folder()} ({error.strerror}): make the folder writable."
        ) from error
