"""`codespec memory`: what is kept of accepted texts, by repository, and how to delete it.

Knows tables; the memory knows files. A running daemon notices at once what was deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.errors import ConfigError

if TYPE_CHECKING:
    from codespec.memory.store import Store

KINDS = {"memory": "texts", "places": "places"}


def add_parser(commands: Any) -> None:
    """Adds the command, its sub-commands and their flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "memory",
        help="show or delete what is kept of the texts that you accepted",
        description="What you accepted, by repository: texts that drafts are taken from (memory_mb), and places "
        "gathered for distillation (gather_places). It never leaves this machine.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    listing = actions.add_parser("list", help="what is kept", description="Lists what is kept, by repository.")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    listing.set_defaults(run=run_list)
    clearing = actions.add_parser("clear", help="delete it", description="Deletes what is kept, texts and places.")
    clearing.add_argument("repository", metavar="REPOSITORY", nargs="?", default="", help="its folder; without it, all")
    clearing.set_defaults(run=run_clear)


def run_list(options: argparse.Namespace) -> int:
    """Prints a line for each repository and kind; returns 0."""
    notes: list[str] = []
    rows: list[dict[str, Any]] = [
        {"kind": KINDS[store.folder.name], "repository": kept.root, "entries": len(kept.entries), "bytes": kept.nbytes}
        for store in _stores()
        for kept in store.read_all(notes)
    ]
    for note in notes:
        print(f"codespec: {note}", file=sys.stderr)
    if options.json:
        print(json.dumps({"kept": rows}))
        return 0
    if not rows:
        print("nothing is kept")
        return 0
    print(f"{'kind':<8}{'entries':>8}{'kB':>8}  repository")
    for row in rows:
        print(f"{row['kind']:<8}{row['entries']:>8}{row['bytes'] / 1000:>8.1f}  {row['repository']}")
    return 0


def run_clear(options: argparse.Namespace) -> int:
    """Deletes and says of how many repositories; returns 0. Raises ConfigError for one of which nothing is kept."""
    try:
        counts = {KINDS[store.folder.name]: _clear(store, options.repository) for store in _stores()}
    except OSError as error:
        raise ConfigError(f"What is kept can't be deleted ({error.strerror}): make its folder writable.") from error
    if options.repository and not any(counts.values()):
        raise ConfigError(f"Nothing is kept of {options.repository}: `codespec memory list` names what is.")
    said = (f"{kind} of {count} repositor{'y' if count == 1 else 'ies'}" for kind, count in counts.items())
    print(f"deleted: {', '.join(said)}")
    return 0


def _clear(store: Store, repository: str) -> int:
    """Deletes one repository, however it is spelled here and was by the editor, or all; returns how many."""
    if not repository:
        return store.clear("")
    given = Path(repository).expanduser()
    wanted = os.path.realpath(given)
    roots = {kept.root for kept in store.read_all([]) if os.path.realpath(kept.root) == wanted}
    return sum(store.clear(root) for root in {*roots, wanted, os.path.abspath(given)})


def _stores() -> tuple[Store, ...]:
    from codespec.memory.accepted import texts_store
    from codespec.memory.places import places_store

    return texts_store(), places_store()
