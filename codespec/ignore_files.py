"""Decide which files a repository's .gitignore files exclude, with git's rules, plus .codespecignore files.

The language server and the drafter's training data use the same rules. Ignore files are read within size limits and
cached until they change. Patterns match paths as bytes, in at most O(pattern × path) time: each piece after a `*` (or
`**`) is matched at the leftmost position that fits and is never moved, so there is no backtracking.
"""

from __future__ import annotations

import errno
import os
import re
import string
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from codespec.regular_file import NotUtf8, Unreadable, read_regular, without_mark

# The part of a name between two stars: literal bytes, or a 256-bit mask of the allowed values for each byte.
Run = bytes | tuple[int, ...]
Name = tuple[Run, ...]
Sized = TypeVar("Sized", bound=Sequence[object])
Text = TypeVar("Text", bound=Sequence[object])

ANY = (1 << 256) - 1
ANY_NAME: Name = (b"", b"")
STAR, SLASH, BACKSLASH, QUESTION, OPEN, CLOSE, DASH, COLON = b"*/\\?[]-:"
_SPECIAL = re.compile(rb"[\\?\[]")
CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": bytes([*range(32), 127]).decode(),
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": string.whitespace,
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}
MASKS = {name: sum(1 << ord(character) for character in set(held)) for name, held in CLASSES.items()}


class NoPattern(Exception):
    """Raised for a pattern that can't match anything."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, relative to the ignore file's folder.

    It consists of groups of names; any number of other path components may lie between two groups.
    """

    groups: tuple[tuple[Name, ...], ...]
    negated: bool
    folders_only: bool

    def match(self, path: Sequence[bytes]) -> bool:
        """Return whether the pattern matches a path, given as its components."""
        return _match(self.groups, path, _names_fit)


class Patterns:
    """The patterns of one ignore file."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._patterns = [pattern for line in lines if (pattern := parse_line(line)) is not None]

    def match(self, path: str, is_folder: bool) -> Pattern | None:
        """Return the last pattern that matches a `/`-separated path, or None."""
        parts = os.fsencode(path).split(b"/")
        for pattern in reversed(self._patterns):
            if (is_folder or not pattern.folders_only) and pattern.match(parts):
                return pattern
        return None


def parse_line(line: bytes) -> Pattern | None:
    """Parse a line. Return None for comments, blank lines and patterns that can't match anything."""
    text = _without_trailing_spaces(line.removesuffix(b"\r"))
    if text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    text = text[1:] if negated else text
    folders_only = text.endswith(b"/")
    text = text[:-1] if folders_only else text
    if not text or text == b"/":
        return None
    try:
        names = [None, _read_name(text)] if b"/" not in text else _read_path(text.removeprefix(b"/"))
    except NoPattern:
        return None
    groups: list[tuple[Name, ...]] = [()]
    for name in names:
        if name is None:
            groups.append(())
        else:
            groups[-1] += (name,)
    return Pattern(tuple(groups), negated, folders_only)


def _match(pieces: Sequence[Sized], text: Text, fits: Callable[[Sized, Text, int], bool]) -> bool:
    """Return whether the pieces occur in the text in order, with anything between them.

    The first piece must be at the start of the text and the last at its end.
    """
    first, last = pieces[0], pieces[-1]
    at, end = len(first), len(text) - len(last)
    if len(pieces) == 1:
        return end == 0 and fits(first, text, 0)
    if at > end or not fits(first, text, 0) or not fits(last, text, end):
        return False
    for piece in pieces[1:-1]:
        while at + len(piece) <= end and not fits(piece, text, at):
            at += 1
        at += len(piece)
    return at <= end


def _names_fit(names: tuple[Name, ...], path: Sequence[bytes], at: int) -> bool:
    return all(_match(name, part, _run_fits) for name, part in zip(names, path[at : at + len(names)], strict=True))


def _run_fits(run: Run, text: bytes, at: int) -> bool:
    if isinstance(run, bytes):
        return text.startswith(run, at)
    return all(mask >> text[at + index] & 1 for index, mask in enumerate(run))


def _read_path(text: bytes) -> list[Name | None]:
    """Parse a pattern with a / into names. None stands for any number of path components (`**`)."""
    names: list[Name | None] = []
    for part in _split(text):
        if len(part) > 1 and not part.strip(b"*"):
            names.append(None)
        else:
            names.append(_read_name(part))
    if names[-1] is None:
        names.append(ANY_NAME)  # matches the folder's contents, not the folder
    return names


def _split(text: bytes) -> list[bytes]:
    """Split at each / outside a [class]. A backslash before a / has no effect."""
    parts, start, index = [], 0, 0
    while index < len(text):
        if text[index] == OPEN:
            index = _read_class(text, index + 1)[1]
            continue
        escaped = text[index] == BACKSLASH
        if text[index + escaped : index + escaped + 1] == b"/":
            parts.append(text[start:index])
            start = index + escaped + 1
        index += 1 + escaped
    return [*parts, text[start:]]


def _read_name(text: bytes) -> Name:
    """Parse a name and its stars. A star does not match across `/`."""
    if not _SPECIAL.search(text):
        first, *others = text.split(b"*")
        return (first, *filter(None, others[:-1]), *others[-1:])
    runs: list[list[int]] = [[]]
    index = 0
    while index < len(text):
        byte, index = text[index], index + 1
        if byte == STAR:
            if runs[-1] or len(runs) == 1:
                runs.append([])
            continue
        if byte == OPEN:
            mask, index = _read_class(text, index)
        elif byte == QUESTION:
            mask = ANY
        else:
            if byte == BACKSLASH:
                byte, index = _escaped(text, index), index + 1
            mask = 1 << byte
        runs[-1].append(mask)
    return tuple(_plain(run) for run in runs)


def _plain(run: list[int]) -> Run:
    """Return the run as bytes if each mask allows exactly one byte, else as masks."""
    if any(mask & (mask - 1) or not mask for mask in run):
        return tuple(run)
    return bytes(mask.bit_length() - 1 for mask in run)


def _read_class(text: bytes, index: int) -> tuple[int, int]:
    """Return the mask of a [class] whose bracket is before `index`, and the index after it.

    Raises NoPattern if the class is not closed.
    """
    negated = text[index : index + 1] in (b"!", b"^")
    index += negated
    mask, before, first = 0, -1, True
    while first or text[index : index + 1] != b"]":
        if index >= len(text):
            raise NoPattern
        first, byte = False, text[index]
        if byte == OPEN and text[index + 1 : index + 2] == b":":
            name, end = _class_name(text, index)
            if name is not None:
                mask, before, index = mask | MASKS[name], -1, end
                continue
        if byte == DASH and before >= 0 and text[index + 1 : index + 2] not in (b"", b"]"):
            index += 1
            byte = text[index]
            if byte == BACKSLASH:
                byte, index = _escaped(text, index + 1), index + 1
            mask |= max(0, (2 << byte) - (1 << before))  # a reversed range is empty
            before = -1
        else:
            if byte == BACKSLASH:
                byte, index = _escaped(text, index + 1), index + 1
            mask |= 1 << byte
            before = byte
        index += 1
    return (ANY ^ mask if negated else mask), index + 1


def _class_name(text: bytes, index: int) -> tuple[bytes | None, int]:
    """Return the name in [:name:] and the index after it, or None if there is no such class here.

    Raises NoPattern for an unknown name.
    """
    end = text.find(b"]", index + 2)
    if end < 0:
        raise NoPattern
    if end - index < 3 or text[end - 1] != COLON:
        return None, index
    name = text[index + 2 : end - 1]
    if name not in MASKS:
        raise NoPattern
    return name, end + 1


def _escaped(text: bytes, index: int) -> int:
    """Return the byte after a backslash, which is literal. Raises NoPattern at the end of the pattern."""
    if index >= len(text):
        raise NoPattern
    return text[index]


def _without_trailing_spaces(text: bytes) -> bytes:
    """Strip trailing spaces, except one that a backslash escapes."""
    stripped = text.rstrip(b" ")
    escaped = len(stripped) - len(stripped.rstrip(b"\\"))
    return stripped + b" " if escaped % 2 and len(stripped) < len(text) else stripped


IGNORE_FILES = (".gitignore", ".codespecignore")
MOST_IGNORE_BYTES = 256 << 10  # total size of the ignore files that apply to one file
MOST_FOLDERS = 100  # parent folders of one file
MOST_KEPT_BYTES = 4 * MOST_IGNORE_BYTES  # total size of the cached ignore files
MOST_DECIDED = 256  # cached decisions, one per file
# errno values that mean there is no ignore file: it does not exist, or its name is invalid.
NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """A parsed ignore file. `seen` identifies its state on disk and differs after every change."""

    name: str
    folder: Path
    seen: tuple[int, ...]
    size: int
    patterns: Patterns


class IgnoreFiles:
    """Find the ignore file that excludes a file. Caches parsed ignore files and decisions until a file changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, IgnoreFile] = {}
        self._decided: dict[Path, tuple[tuple[tuple[Path, str, tuple[int, ...]], ...], str]] = {}

    def reason(self, file: Path, roots: Collection[Path]) -> str:
        """Return why a file is excluded, as one sentence, or "" if it is not.

        `roots` are the open workspace folders. Ignore files apply up to the repository's folder, else the workspace
        folder, else the file's own folder.
        """
        return self.reason_below(repository_of(file, roots) or file.parent, file)

    def reason_below(self, top: Path, file: Path) -> str:
        """Like `reason`, but with the ignore files in `top` and its subfolders."""
        folders = [parent for parent in file.parents if parent.is_relative_to(top)]
        if len(folders) > MOST_FOLDERS:
            return f"{file.name} lies in more than {MOST_FOLDERS} folders, so it is not completed."
        files: list[IgnoreFile] = []
        for path in (folder / name for folder in folders for name in reversed(IGNORE_FILES)):
            try:
                files += self._find(path, MOST_IGNORE_BYTES - sum(each.size for each in files))
            except OSError as error:
                why = str(error) if isinstance(error, Unreadable) else error.strerror or type(error).__name__
                return f"{file.name} is not completed, because {path} can't be followed ({why}): fix or remove it."
        state = tuple((each.folder, each.name, each.seen) for each in files)
        known = self._decided.get(file)
        if known is None or known[0] != state:
            name = _named_by(files, file, folders)
            known = (state, f"{file.name} is excluded by {name}." if name else "")
            with self._lock:
                if len(self._decided) >= MOST_DECIDED:
                    self._decided.clear()
                self._decided[file] = known
        return known[1]

    def _find(self, path: Path, most: int) -> list[IgnoreFile]:
        """Return the ignore file at a path as a list of at most one. Raises OSError if it can't be read."""
        try:
            status = path.stat()
        except ValueError:
            return []
        except OSError as error:
            if error.errno in NOT_THERE:
                return []
            raise
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._read.get(path)
        if known is None or known.seen != seen:
            data = read_regular(path, MOST_IGNORE_BYTES)
            known = IgnoreFile(path.name, path.parent, seen, len(data), Patterns(_lines(data)))
            with self._lock:
                if sum(each.size for each in self._read.values()) + len(data) > MOST_KEPT_BYTES:
                    self._read.clear()
                self._read[path] = known
        if known.size > most:
            raise Unreadable(f"with those in the folders below it is longer than {MOST_IGNORE_BYTES >> 10} KiB")
        return [known]


def _lines(data: bytes) -> list[bytes]:
    """Split an ignore file into patterns (bytes, like file names). Raises Unreadable if it is not UTF-8."""
    try:
        return without_mark(data).split(b"\n")
    except NotUtf8 as error:  # PowerShell writes UTF-16, in which no pattern would match
        raise Unreadable(str(error)) from error


def repository_of(file: Path, roots: Collection[Path]) -> Path | None:
    """Return the folder of the file's repository, else of its workspace, else None. Reads the file system."""
    repository = next((parent for parent in file.parents if os.path.exists(parent / ".git")), None)
    if repository is not None:
        return repository
    around = [root for root in roots if file.is_relative_to(root)]
    return min(around, key=lambda root: len(root.parts)) if around else None


def _named_by(files: Sequence[IgnoreFile], file: Path, folders: Sequence[Path]) -> str:
    """Return the name of the ignore file that excludes a file or a parent folder, or "".

    Checks the outermost folder first, because files in an excluded folder can't be included again.
    """
    for path in [*reversed(folders[:-1]), file]:
        for name in reversed(IGNORE_FILES):
            if _ignores([each for each in files if each.name == name], path, is_folder=path != file):
                return name
    return ""


def _ignores(files: Iterable[IgnoreFile], path: Path, is_folder: bool) -> bool:
    """Return whether a path is ignored, by the nearest ignore file with a matching pattern."""
    for each in files:
        if each.folder in path.parents:
            pattern = each.patterns.match(path.relative_to(each.folder).as_posix(), is_folder)
            if pattern is not None:
                return not pattern.negated
    return False
