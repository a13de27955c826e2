"""Which target and which drafter a model's name means.

Knows the catalogue, the starter pair and what is pulled; fetches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec.catalogue.entries import OWN_DRAFTER, Entry, find_entry, read_catalogue
from codespec.catalogue.store import find_pulled
from codespec.config import STARTER
from codespec.errors import ConfigError

STARTER_NAME, REFERENCE = "starter", "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and drafter as EngineConfig takes them; `dtype` is the target's recommended format, "" the default."""

    target: str
    drafter: str
    dtype: str


def pair_of(name: str) -> Pair:
    """The pair that a name of the catalogue, its hub id or "starter" means; ConfigError for other names."""
    if name == STARTER_NAME:
        return Pair(str(STARTER / "target"), str(STARTER / "drafter"), "")
    entry = find_entry(name)
    if entry is None:
        raise ConfigError(f"model = {name!r} is not one of {', '.join(known_names())}.")
    return Pair(entry.name, drafter_of(entry), entry.dtype)


def drafter_of(entry: Entry) -> str:
    """The recommended drafter as EngineConfig takes it: a name, "none", or the folder of the one that ships."""
    return str(STARTER / "drafter") if entry.drafter == OWN_DRAFTER else entry.drafter


def known_names() -> list[str]:
    """All that `pair_of` knows."""
    return [STARTER_NAME, *read_catalogue()]


def default_model() -> str:
    """The model where nothing is chosen: the reference pair's if it has been pulled, else the starter pair."""
    return REFERENCE if find_pulled(REFERENCE) else STARTER_NAME
