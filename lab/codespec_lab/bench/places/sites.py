"""Choose places in packages by a seeded rule: a cursor in a line of code, whose rest an editor should suggest.

A package gets equally many places as the others of its language, its files one after the other, in an order that the
seed decides. The cursor is at the start of the line's code or of a later word. Comments, texts, imports, long lines and
generated files are left out.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from codespec_grammars import ContextTracker
from codespec_grammars.grammar import TEXT_LIKE
from codespec_lsp.imports import import_rows

from codespec.files import NotUtf8, Unreadable, decode_text, read_regular
from codespec_lab.bench.places.identifiers import identifiers
from codespec_lab.bench.places.packages import Package
from codespec_lab.bench.typing_sites import MAX_UNIT, TypingSite
from codespec_lab.corpus.gaps import COMMENTS

ENDINGS: Mapping[str, tuple[str, ...]] = {
    "python": (".py",),
    "typescript": (".ts", ".tsx"),
    "go": (".go",),
    "rust": (".rs",),
    "cpp": (".cc", ".cpp", ".hpp"),
    "java": (".java",),
}
LINES = range(40, 3000)  # of a file
MAX_FILE, MAX_WIDTH = 128 << 10, 200  # bytes of a file; characters of its longest line
ABOVE = 10  # lines above a place
CODE = range(12, 101)  # characters of a line's code
MIN_REST = 4  # characters of the line after the cursor
PER_FILE = 4  # places
WHOLE_LINES = 1 / 3  # share of the places that are at the start of a line's code
TRIES = 20  # lines tried for one place
_GENERATED = re.compile(r"\bgenerated (?:by|from|code|file)\b|DO NOT EDIT", re.IGNORECASE)
_COMMENTED = re.compile(r"(?:\s|^)(?:#|//|/\*)")
_WORD_START = re.compile(r"(?<![\w$#@])[A-Za-z_]")


@dataclass(frozen=True, slots=True)
class Place(TypingSite):
    """A site whose rest of the line is to be suggested, in a file of a package that is unpacked in `root`.

    `beside` are files that are open in the editor as well.
    """

    root: Path
    file: Path
    package: Package
    whole_line: bool
    beside: Sequence[Path]

    @property
    def uri(self) -> str:
        """Return the document's URI."""
        return self.file.as_uri()


def find_places(unpacked: Mapping[Package, Path], count: int, seed: int) -> list[Place]:
    """Return up to `count` places, the languages in turn."""
    languages = {package.language: list[Iterator[Place]]() for package in unpacked}
    for package, root in unpacked.items():
        languages[package.language].append(_in_package(package, root, random.Random(f"{seed} {package.spelled}")))
    rows = [_in_turn(packages) for packages in languages.values()]
    return list(islice(_in_turn(rows), count))


def _in_turn(rows: Sequence[Iterator[Place]]) -> Iterator[Place]:
    return (place for turn in zip_longest(*rows) for place in turn if place is not None)


def _in_package(package: Package, root: Path, dice: random.Random) -> Iterator[Place]:
    """Yield the places of a package: one in each of its files, then the second ones, and so on."""
    endings = ENDINGS[package.language]
    files = sorted(file for file in root.rglob("*") if file.name.endswith(endings) and _is_source(file))
    if package.registry == "debian":  # the project is deep below usr/share
        root = Path(os.path.commonpath([file.parent for file in files]))
    order = random.Random(dice.random()).sample(files, len(files))
    rows = [_in_file(package, root, file, files, random.Random(f"{dice.random()}")) for file in order]
    return chain.from_iterable(_turns(rows))


def _turns(rows: list[Iterator[Place]]) -> Iterator[list[Place]]:
    for _ in range(PER_FILE):
        yield from ([place] for row in rows if (place := next(row, None)) is not None)


def _is_source(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and ".d." not in file.name and "node_modules" not in file.parts


def _in_file(package: Package, root: Path, file: Path, files: Sequence[Path], dice: random.Random) -> Iterator[Place]:
    """Yield the places of a file, no line twice. A file that is not read is not source code written by people."""
    try:
        text = decode_text(read_regular(file, MAX_FILE))
    except (OSError, NotUtf8, Unreadable):
        return
    lines = text.splitlines(keepends=True)
    wide = max(map(len, lines), default=0) > MAX_WIDTH
    if len(lines) not in LINES or wide or "\r" in text or _GENERATED.search("".join(lines[:10])):
        return
    imports, at = set(import_rows(lines)), files.index(file)
    beside = [each for each in (*files[max(0, at - 1) : at], *files[at + 1 : at + 2]) if each.parent == file.parent]
    rows = [row for row in range(ABOVE, len(lines)) if lines[row] not in imports and _is_code(lines[row])]
    for row in dice.sample(rows, min(len(rows), TRIES)):
        line = lines[row].rstrip("\n")
        column = _column(line, dice)
        begin = sum(map(len, lines[:row])) + column
        end = begin - column + len(line.rstrip())
        cursor = ContextTracker(package.language, text[:begin].encode(), text[end:].encode()).context()
        if cursor.context not in TEXT_LIKE and end - begin >= MIN_REST and identifiers(text[begin:end]):
            name = f"{package.spelled}/{file.relative_to(root).as_posix()}:{row + 1}:{column}"
            whole = not line[:column].strip()
            yield Place(name, package.language, text, begin, end, root, file, package, whole, tuple(beside))


def _is_code(line: str) -> bool:
    code = line.strip()
    return len(code) in CODE and not code.startswith(COMMENTS) and not _COMMENTED.search(line) and max(code) <= MAX_UNIT


def _column(line: str, dice: random.Random) -> int:
    """Return the column of the line's code, or of a word after it."""
    starts = [found.start() for found in _WORD_START.finditer(line)]
    first = len(line) - len(line.lstrip())
    later = [start for start in starts if start > first and len(line.rstrip()) - start >= MIN_REST]
    return dice.choice(later) if later and dice.random() >= WHOLE_LINES else first
