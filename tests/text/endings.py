"""Places in code and what a completion there keeps, read from `endings/<language>.txt`.

A case is `#### name`, perhaps `!shape`, then code with `⟦kept¦dropped⟧` at the cursor: what a model says there, and
where it is to be cut. `⟦!reason⟧` says that nothing is to begin. A `\\r` at a line's end stands for the byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "endings"
LANGUAGES = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


@dataclass(frozen=True)
class Case:
    """One place. `idle` is part of the reason why nothing begins there, "" where something may."""

    language: str
    name: str
    shape: str
    prefix: str
    suffix: str
    kept: str
    dropped: str
    idle: str

    def __str__(self) -> str:
        return f"{self.language}: {self.name}"

    @property
    def said(self) -> str:
        """What the model says."""
        return self.kept + self.dropped


def read_cases(language: str) -> list[Case]:
    """All cases of one language."""
    text = (FOLDER / f"{language}.txt").read_text(encoding="utf-8").replace("\\r\n", "\r\n")
    return [_case(language, part) for part in re.split(r"^#### ", text, flags=re.M)[1:]]


def _case(language: str, part: str) -> Case:
    name, _, code = part.partition("\n")
    shape = "auto"
    if code.startswith("!"):
        shape, _, code = code[1:].partition("\n")
    prefix, _, rest = code.partition("⟦")
    said, _, suffix = rest.partition("⟧")
    suffix = suffix.removesuffix("\n") if suffix.strip() else ""
    idle = said[1:] if said.startswith("!") else ""
    kept, _, dropped = ("", "", "") if idle else said.partition("¦")
    return Case(language, name, shape, prefix, suffix, kept, dropped, idle)


CASES = [case for language in LANGUAGES for case in read_cases(language)]
