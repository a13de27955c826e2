"""Reads the fixtures: source files with caret comments, one folder a language.

A line that holds only a comment marker, a caret and a context says what is expected in the line above it that is no
such line itself; the cursor stands just left of the character above the caret:

    total = foo(a, b)
    #              ^ arguments open=( indent=4

Columns count characters. Where the marker would hide the column, the column is written out: `#0 ^ indent`. After the
context may stand `open=` (the open brackets, outermost first), `indent=` (the indent that the next statement is
expected to have) and `whole` (the case makes sense with the text to the right only). These lines are no part of the
source that is tested. Each case is tested with the rest of the file as suffix and, unless `whole`, cut off at the
cursor, so that half of all cases are code that ends in the middle; the files called `broken` are broken elsewhere too.
Python's fixtures are `.pyw`: neither linters nor the house's rules take those for sources of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_CARET = re.compile(r"\s*(?:#|//|--)(\d*) *\^ (\w+)((?: \S+)*)\s*$")


@dataclass(frozen=True)
class Case:
    """One expectation: the text left and right of the cursor and what is said about it."""

    where: str
    prefix: bytes
    suffix: bytes
    context: str
    brackets: str | None
    indent: int | None
    whole: bool


def fixture_files(language: str) -> list[Path]:
    return sorted(path for path in (FOLDER / language).iterdir() if path.is_file())


def languages() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and not path.name.startswith("_"))


def read_source(path: Path) -> str:
    """The fixture without its caret lines."""
    return "".join(line for line in _lines(path) if not _CARET.match(line))


def read_cases(path: Path) -> list[Case]:
    source, cases = read_source(path), []
    start = after = 0
    for number, line in enumerate(_lines(path), 1):
        found = _CARET.match(line)
        if found is None:
            start, after = after, after + len(line)
        else:
            column = int(found[1]) if found[1] else line.index("^")
            assert start + column < after, f"{path.name}:{number}: the caret points behind its line"
            cases.append(_case(f"{path.parent.name}/{path.name}:{number}", source, start + column, found))
    return cases


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def _case(where: str, source: str, at: int, found: re.Match[str]) -> Case:
    words = found[3].split()
    said = dict(word.split("=", 1) for word in words if "=" in word)
    assert said.keys() <= {"open", "indent"} and {w for w in words if "=" not in w} <= {"whole"}, where
    indent = int(said["indent"]) if "indent" in said else None
    prefix, suffix = source[:at].encode(), source[at:].encode()
    return Case(where, prefix, suffix, found[2], said.get("open"), indent, "whole" in words)
