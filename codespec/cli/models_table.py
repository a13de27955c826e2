"""The models as a table: the catalogue, other pulled models, and the recommended pairs.

Reads only the catalogue and this machine's state; fetches and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from codespec.store.catalogue import BYTES, OWN_DRAFTERS, Entry, Index, Rounding, read_advice, read_catalogue
from codespec.store.choice import recommend
from codespec.store.disk import written
from codespec.store.machine import has_gpu, machine_memory
from codespec.store.pull import partly
from codespec.store.pulled import models_home, pulled
from codespec.store.wheel import provenance

_COLUMNS = ("name", "here", "download", "memory", "fits", "fim", "drafter", "licence")
_TO_THE_RIGHT = ("download", "memory")


def overview() -> dict[str, Any]:
    """Return the table's content as a JSON-compatible object."""
    there, begun, memory = pulled(), partly(), machine_memory()
    best = recommend(gpu=has_gpu())
    entries = read_catalogue()
    rows = [_entry_row(entry, _state(entry.name, there, begun), memory) for entry in entries.values()]
    others = [name for name in [*there, *begun] if name not in entries]
    rows += [_other_row(name, there) for name in dict.fromkeys(others)]
    return {
        "home": str(models_home()),
        "memory": memory,
        "models": rows,
        "best": best.model,
        "why": best.why,
        "recommended": [{**asdict(advice), "licence": entries[advice.target].licence} for advice in read_advice()],
    }


def render(found: Mapping[str, Any]) -> list[str]:
    """Return the table as lines for a terminal."""
    table = [_COLUMNS, *(_cells(row) for row in found["models"])]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(_COLUMNS))]
    lines = [_line(cells, widths) for cells in table]
    machine = f"this machine has {written(found['memory'])} of memory; " if found["memory"] else ""
    lines += ["", f"{machine}models are in {found['home']}", "", "the recommended pair by free memory:"]
    for advice in found["recommended"]:
        drafter = "the drafter that ships" if advice["drafter"] in OWN_DRAFTERS else advice["drafter"]
        here = "  <- for this machine" if advice["target"] == found["best"] else ""
        lines.append(f"{advice['gigabytes']:>5} GB  {advice['target']} with {drafter} ({advice['licence']}){here}")
    lines += ["", f"for this machine: {found['best']}, since {found['why']}"]
    for row in found["models"]:
        if row.get("packaging"):
            lines.append(f"{row['name']} on the package index: {row['packaging']}")
    for row in found["models"]:
        lines += [f"{row['name']}: {Rounding(**figures)}" for figures in row.get("int8", ())]
    return [*lines, "", "get one: codespec models pull NAME"]


def _state(name: str, there: Mapping[str, Any], begun: list[str]) -> str:
    return "pulled" if name in there else "partly" if name in begun else ""


def _entry_row(entry: Entry, state: str, memory: int | None) -> dict[str, Any]:
    drafter = read_catalogue().get(entry.drafter)
    needed = entry.memory + (drafter.parameters * BYTES[drafter.dtype] if drafter else 0)
    return {
        "name": entry.name,
        "title": entry.title,
        "here": state,
        "download": entry.size,
        "memory": needed,
        "fits": None if memory is None else needed <= memory,
        "fim": bool(entry.fim),
        "drafter": entry.drafter,
        "licence": entry.licence,
        "parameters": entry.parameters,
        "context": entry.context,
        "source": "; ".join(map(str, entry.sources)),
        "packaging": _packaging(entry),
        "card": entry.card,
        "gated": entry.gated,
        "int8": [asdict(figures) for figures in entry.int8],
    }


def _packaging(entry: Entry) -> str:
    """Return the provenance of the entry's packages, or "" for a model that is only on the hub."""
    packed = any(isinstance(source, Index) for source in entry.sources)
    return provenance(entry.file) if packed and entry.file else ""


def _other_row(name: str, there: Mapping[str, Any]) -> dict[str, Any]:
    model = there.get(name)
    if model is None:
        return {"name": name, "here": "partly"}
    return {"name": name, "here": "pulled", "bytes": model.bytes, "licence": model.licence, "source": model.source}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        row["here"] or "-",
        written(row["download"]) if "download" in row else "-",
        written(row["memory"]) if "memory" in row else "-",
        _yes(row.get("fits")),
        _yes(row.get("fim")),
        row.get("drafter", "-"),
        (row.get("licence") or "not stated") + (", requires a login" if row.get("gated") else ""),
    )


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = [
        cell.rjust(width) if column in _TO_THE_RIGHT else cell.ljust(width)
        for column, cell, width in zip(_COLUMNS, cells, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()
