"""Read the source files that changed between two releases of a package, from its archives, and their hunks.

An archive is a wheel or a zip, or a tar as npm and the Python index serve it. Nothing is unpacked to disk or run.
"""

from __future__ import annotations

import difflib
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from codespec_grammars import find_language
from codespec_lsp.buffer import split_lines
from codespec_lsp.line_edits import Hunk

from codespec.errors import TrainingError

MAX_FILE = 512 << 10  # bytes
MAX_LINES = 6000  # the diff's time grows with the square
MAX_LINE = 1000  # characters; a file with a longer line is minified or data


@dataclass(frozen=True, slots=True)
class FilePair:
    """A source file of two releases. `hunks`, top to bottom, turn `old` into `new`; their rows are `old`'s."""

    path: str
    language: str
    old: str
    new: str
    hunks: tuple[Hunk, ...]


def release_pairs(old: Path, new: Path) -> Iterator[FilePair]:
    """Yield the source files that both archives contain with different texts, sorted by path.

    Left out are files that are long, minified or not UTF-8. Raises TrainingError if an archive cannot be read.
    """
    before, after = _sources(old), _sources(new)
    for path in sorted(before.keys() & after.keys()):
        texts = before[path], after[path]
        if texts[0] != texts[1]:
            yield FilePair(path, find_language(path=path), *texts, tuple(hunks_between(*texts)))


def hunks_between(old: str, new: str) -> Iterator[Hunk]:
    """Yield the replacements of whole lines that turn `old` into `new`."""
    lines, others = split_lines(old), split_lines(new)
    matcher = difflib.SequenceMatcher(None, lines, others, autojunk=False)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag != "equal":
            yield Hunk(start, end, "".join(lines[start:end]), "".join(others[other_start:other_end]))


def _sources(archive: Path) -> dict[str, str]:
    """Return the texts of an archive's source files by path, without the one folder that a tar has around all files."""
    try:
        is_zip = zipfile.is_zipfile(archive)
        files = dict(_zipped(archive) if is_zip else _tarred(archive))
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise TrainingError(f"{archive} cannot be read ({error}); download the package again.") from error
    strip = not is_zip and len({path.partition("/")[0] for path in files}) == 1
    texts = {path.partition("/")[2] if strip else path: _decode(data) for path, data in files.items()}
    return {path: text for path, text in texts.items() if text}


def _zipped(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as wheel:
        for item in wheel.infolist():
            if _is_source(item.filename, item.file_size):
                yield item.filename, wheel.read(item)


def _tarred(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and _is_source(member.name, member.size) and (file := tar.extractfile(member)):
                yield member.name, file.read()


def _is_source(path: str, size: int) -> bool:
    return size <= MAX_FILE and bool(find_language(path=path))


def _decode(data: bytes) -> str:
    """Return the text of a source file, or "" if it is not one that a person edits."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    lines = text.split("\n")
    plain = "\0" not in text and len(lines) <= MAX_LINES and max(map(len, lines)) <= MAX_LINE
    return text if plain else ""
