r"""Completion endings: positions in code and the kept part of a completion there, read from `endings/<language>.txt`.

A case is `#### name`, optionally `!shape`, then code with `⟦kept¦dropped⟧` at the cursor: the model's text, and where
it must be cut. `⟦!reason⟧` means that nothing may begin there. A `\r` at a line's end stands for the byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "endings"
LANGUAGES = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


@dataclass(frozen=True)
class Case:
    """One position. `idle` is part of the reason why nothing may begin there, or ""."""

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
    def message(self) -> str:
        """The model's text."""
        return self.kept + self.dropped


def read_cases(language: str) -> list[Case]:
    """Return all cases of one language."""
    text = (FOLDER / f"{language}.txt").read_text(encoding="utf-8").replace("\\r\n", "\r\n")
    return [_case(language, part) for part in re.split(r"^#### ", text, flags=re.M)[1:]]


def _case(language: str, part: str) -> Case:
    name, _, code = part.partition("\n")
    shape = "auto"
    if code.startswith("!"):
        shape, _, code = code[1:].partition("\n")
    prefix, _, rest = code.partition("⟦")
    message, _, suffix = rest.partition("⟧")
    suffix = suffix.removesuffix("\n") if suffix.strip() else ""
    idle = message[1:] if message.startswith("!") else ""
    kept, _, dropped = ("", "", "") if idle else message.partition("¦")
    return Case(language, name, shape, prefix, suffix, kept, dropped, idle)


CASES = [case for language in LANGUAGES for case in read_cases(language)]
