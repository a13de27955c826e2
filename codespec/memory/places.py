"""Places where a completion was accepted, gathered for distillation if the user wants that. They stay on this machine.

Knows what a place is; the store knows files.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from codespec.memory.store import Store

NAME = "places"
MOST_BYTES = 16 << 20  # of all repositories
MOST_PREFIX, MOST_SUFFIX = 2048, 512  # characters around the cursor


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor and what was accepted there. `path` is that in the repository, `prefix` and `suffix` are the text near
    the cursor, `text` what was accepted."""

    root: str
    path: str
    language: str
    prefix: str
    suffix: str
    text: str


def places_store() -> Store:
    """Where places are kept."""
    return Store(NAME, MOST_BYTES)


def keep_place(store: Store, place: Place, notes: MutableSequence[str]) -> None:
    """Keeps a place as its repository's newest. Raises OSError, ConfigError."""
    values = asdict(place)
    store.add(values.pop("root"), values, notes)


def read_places(notes: MutableSequence[str]) -> list[Place]:
    """All gathered places, each repository's from old to new; what can't be read is left out and said in `notes`."""
    return [
        Place(kept.root, **entry)
        for kept in places_store().read_all(notes)
        for entry in kept.entries
        if _is_place(entry)
    ]


def _is_place(entry: Any) -> bool:
    wanted = {item.name for item in fields(Place)} - {"root"}
    return isinstance(entry, dict) and set(entry) == wanted and all(isinstance(text, str) for text in entry.values())
