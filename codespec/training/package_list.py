"""Reads a list of packages by registry: names to train on, projects held out, room for languages. Fetches nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import TrainingError

REGISTRIES = ("pypi", "npm", "debian", "debian_dev")


@dataclass(frozen=True, slots=True)
class PackageList:
    """`train[registry]` and `held_out[registry]` are names; `room[language]` is the most characters to take of it."""

    train: Mapping[str, tuple[str, ...]]
    held_out: Mapping[str, tuple[str, ...]]
    room: Mapping[str, float]

    def names(self, registry: str) -> tuple[str, ...]:
        """Every name of a registry."""
        return (*self.train[registry], *self.held_out[registry])


def read_package_list(path: Path) -> PackageList:
    """The list in a TOML file. Raises TrainingError if it is missing, not TOML, or a project is on both sides."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        room = {str(name): 1e6 * float(size) for name, size in raw.get("megabytes", {}).items()}
        train, held_out = (
            {registry: tuple(map(str, raw.get(registry, {}).get(side, ()))) for registry in REGISTRIES}
            for side in ("train", "held_out")
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"The package list {path} cannot be read ({error}); see the starter pair's packages.toml."
        ) from error
    for registry in REGISTRIES:
        if both := sorted(set(train[registry]) & set(held_out[registry])):
            raise TrainingError(f"{path}: {', '.join(both)} must not be trained on and held out; remove one.")
    return PackageList(train, held_out, room)
