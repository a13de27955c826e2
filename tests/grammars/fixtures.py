"""Read the fixtures: source files with caret comments, one folder per language.

A line with only a comment marker, a caret and a context is an expectation for the nearest code line above. The cursor
is just left of the character above the caret:

    total = foo(a, b)
    #              ^ arguments open=( indent=4

Columns count characters. If the marker would hide the column, the column is written out: `#0 ^ indent`. The context may
be followed by `open=` (the open brackets, outermost first), `indent=` (the expected indent of the next statement) and
`whole` (the case only makes sense with the text to the right). These lines are removed from the tested source. Each
case is tested with the rest of the file as suffix and, unless `whole`, truncated at the cursor, so half of all cases
are incomplete code. The files called `broken` also have other errors.
Python's fixtures are `.pyw`, so that linters and the project's own checks ignore them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_CARET = re.compile(r"\s*(?:#|//|--)(\d*) *\^ (\w+)((?: \S+)*)\s*$")


@dataclass(frozen=True)
class Case:
    """One expectation: the text left and right of the cursor and its expected context."""

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
    """Return the fixture without its caret lines."""
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
    message = dict(word.split("=", 1) for word in words if "=" in word)
    assert message.keys() <= {"open", "indent"} and {w for w in words if "=" not in w} <= {"whole"}, where
    indent = int(message["indent"]) if "indent" in message else None
    prefix, suffix = source[:at].encode(), source[at:].encode()
    return Case(where, prefix, suffix, found[2], message.get("open"), indent, "whole" in words)
