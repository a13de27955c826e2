"""The rows of a file that import others, and which files of its repository they may mean.

By names alone: an import's words are looked for as a path, below the file's own folder and the folders above it. Knows
how languages spell imports and how their files end; opens no file, and knows no documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROWS = 400  # that are searched
MOST_ROW = 200  # characters
MOST_FILES = 6
MOST_TRIED = 4000  # paths that are looked at: some milliseconds
MOST_MATCHES = 100  # files of one folder
MOST_INSIDE = 40  # rows inside one bracket
_IMPORT = re.compile(
    r"\s*(?:import|from|use|using|#\s*include|require|require_relative|include|package|extern crate|export .* from|"
    r"(?:pub )?mod)\b"
)
_REQUIRE = re.compile(r".*\brequire\(")
_QUOTED = re.compile(r"""["'<]([\w@~$./+-]+)["'>]""")
_ALIASES = ("@", "~")  # of a repository's own sources
_WORDS = re.compile(r"\.*[\w$]+(?:(?:\.|::)[\w$]+)*|\.+(?=\s+import\b)")
_KEYWORDS = frozenset(
    ("import", "from", "use", "using", "static", "type", "package", "extern", "pub", "mod", "as", "include", "require")
)
_HERE, _ABOVE, _TOP = "self", "super", "crate"  # Rust's
_BESIDE = ("src", "lib", "include", "src/main/java", "src/main/kotlin")  # below a repository, where sources begin
_C = ("", ".h", ".hpp")
_SCRIPT = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", ".d.ts", "/index.ts", "/index.js")
ENDINGS = {
    ".py": (".py", "/__init__.py", ".pyi"),
    ".pyi": (".pyi", ".py", "/__init__.py"),
    **dict.fromkeys((".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".vue", ".svelte"), _SCRIPT),
    **dict.fromkeys((".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp"), _C),
    ".rs": (".rs", "/mod.rs"),
    ".java": (".java", ".kt"),
    ".kt": (".kt", ".java"),
    ".scala": (".scala", ".java"),
    ".go": ("/*.go",),
    ".rb": (".rb", ""),
    ".php": (".php", ""),
    ".lua": (".lua", "/init.lua"),
}


class Import(NamedTuple):
    """What a row names: `words` of a path, `above` folders above the file's own; None: anywhere above."""

    words: tuple[str, ...]
    above: int | None = None


def import_rows(lines: Sequence[str]) -> list[str]:
    """The rows of a file that import something, with those inside a bracket that such a row opens."""
    rows, inside = list[str](), 0
    for row in lines[:ROWS]:
        if len(row) >= MOST_ROW:
            inside = 0
        elif inside or _IMPORT.match(row) or _REQUIRE.match(row):
            rows.append(row)
            inside = _left_inside(row, inside)
    return rows


def find_imported(rows: Sequence[str], file: Path, repository: Path) -> list[Path]:
    """Existing files of the repository that the rows of a file may mean, at most MOST_FILES, in their order."""
    endings = ENDINGS.get(file.suffix, ())
    folders = [folder for folder in file.parents if folder.is_relative_to(repository)]
    found, tried = dict[Path, None](), 0
    for named in (named for row in _joined(rows) for named in parse_import(row)):
        for path in _candidates(named, folders, repository, endings):
            tried += 1
            matches = _existing(path)
            if matches:
                found |= dict.fromkeys(each for each in matches if each != file)
                break
        if len(found) >= MOST_FILES or tried >= MOST_TRIED:
            break
    return list(found)[:MOST_FILES]


def parse_import(row: str) -> list[Import]:
    """What a row may name, the likeliest first."""
    quoted = _QUOTED.findall(row)
    if quoted:
        return [_path_import(each) for each in quoted]
    words = [each for each in _WORDS.findall(row) if each not in _KEYWORDS]
    if not words:
        return []
    base, *others = (_word_import(each) for each in words)
    members = [Import((*base.words, *other.words), base.above) for other in others]
    return [*members, base, *(others if row.lstrip().startswith("import") else ())]


def _path_import(text: str) -> Import:
    """`./a/b`, `../c`, `geo/box.h`, `example.com/shop/prices`."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    above = parts.count("..") if text.startswith(".") else None
    return Import(tuple(part for part in parts if part != ".."), above)


def _word_import(text: str) -> Import:
    """`..a.b`, `com.shop.Price`, `crate::shop::price`, `super::price`."""
    dots = len(text) - len(text.lstrip("."))
    words = [word for word in re.split(r"\.|::", text) if word]
    above = dots - 1 if dots else None
    while words and words[0] in (_HERE, _ABOVE, _TOP):
        if words[0] != _TOP:
            above = (above or 0) + (words[0] == _ABOVE)
        del words[0]
    return Import(tuple(words), above)


def _candidates(named: Import, folders: Sequence[Path], repository: Path, endings: Sequence[str]) -> Iterator[Path]:
    """The paths that an import may mean, whether or not they exist: more words first, then nearer folders."""
    beside = (repository / name for name in _BESIDE)
    starts = [*folders, *beside] if named.above is None else folders[named.above : named.above + 1]
    for words in _spellings(named):
        yield from (start.joinpath(*words[:-1], words[-1] + ending) for start in starts for ending in endings)


def _existing(path: Path) -> list[Path]:
    """The file of a path; several where it is a pattern, no tests among them."""
    try:
        if "*" not in path.name:
            return [path] if path.is_file() else []
        matches = sorted(islice(path.parent.glob(path.name), MOST_MATCHES))
        return [each for each in matches if not each.stem.endswith("_test")]
    except OSError:  # a folder that may not be looked into
        return []


def _spellings(named: Import) -> Iterator[tuple[str, ...]]:
    """The words as a path: the last ones may be what a file defines, the first ones what the repository is called."""
    words = named.words
    yield from (words[:end] for end in range(len(words), 0, -1))
    if words and words[-1].endswith(".js"):  # as TypeScript calls what it will become
        yield (*words[:-1], words[-1].removesuffix(".js"))
    if len(words) == 1 and "." in words[0]:  # as Lua does between quotes
        yield tuple(words[0].split("."))
    if named.above is None and words and ("." in words[0] or words[0] in _ALIASES):
        yield from (words[first:] for first in range(1, len(words)))


def _joined(rows: Sequence[str]) -> list[str]:
    """The rows, those inside a bracket with the one that opens it."""
    joined, inside = list[str](), 0
    for row in rows:
        if inside:
            joined[-1] += row
        else:
            joined.append(row)
        inside = _left_inside(row, inside)
    return joined


def _left_inside(row: str, inside: int) -> int:
    """How many more rows stand inside a bracket at most, behind a row; `inside` is what was left before it."""
    opens, closes = row.rstrip().endswith(("(", "{")), row.lstrip().startswith((")", "}"))
    if opens and not inside:
        return MOST_INSIDE
    return 0 if closes or not inside else inside - 1
