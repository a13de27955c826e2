"""Which files the ignore files of a repository leave out, as git itself reads them, and codespec's own beside them: one
rule for the language server and for what a drafter learns from.

Reads ignore files within bounds, and remembers them until they change; knows neither editors nor models.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codespec.ignore_patterns import Patterns
from codespec.regular_file import Unreadable, read_regular
from codespec.text_file import NotUtf8, without_mark

IGNORE_FILES = (".gitignore", ".codespecignore")
MOST_IGNORE_BYTES = 256 << 10  # of the ignore files that concern one file
MOST_FOLDERS = 100  # above one file
MOST_KEPT_BYTES = 4 * MOST_IGNORE_BYTES  # of ignore files that are remembered
MOST_DECIDED = 256  # files
# Of a name that no file can have, or none has, there is no ignore file either.
NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """An ignore file as it was read; `seen` is its state in the file system, which differs after each change."""

    name: str
    folder: Path
    seen: tuple[int, ...]
    size: int
    patterns: Patterns


class IgnoreFiles:
    """Which ignore file excludes a file. Ignore files are read once, and files decided once, until one changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, IgnoreFile] = {}
        self._decided: dict[Path, tuple[tuple[tuple[Path, str, tuple[int, ...]], ...], str]] = {}

    def reason(self, file: Path, roots: Collection[Path]) -> str:
        """Why a file is left out, in one sentence; "" where it is not. `roots` are the folders that are open: ignore
        files count up to the folder of the repository, else of the workspace, else the file's own.
        """
        return self.reason_below(repository_of(file, roots) or file.parent, file)

    def reason_below(self, top: Path, file: Path) -> str:
        """The same by the ignore files in a folder and below it."""
        folders = [parent for parent in file.parents if parent.is_relative_to(top)]
        if len(folders) > MOST_FOLDERS:
            return f"{file.name} lies in more than {MOST_FOLDERS} folders, so it is not completed."
        found: list[IgnoreFile] = []
        for path in (folder / name for folder in folders for name in reversed(IGNORE_FILES)):
            try:
                found += self._find(path, MOST_IGNORE_BYTES - sum(each.size for each in found))
            except OSError as error:
                why = str(error) if isinstance(error, Unreadable) else error.strerror or type(error).__name__
                return f"{file.name} is not completed, as {path} can't be followed ({why}): mend or remove that file."
        state = tuple((each.folder, each.name, each.seen) for each in found)
        known = self._decided.get(file)
        if known is None or known[0] != state:
            name = _named_by(found, file, folders)
            known = (state, f"{file.name} is excluded by {name}." if name else "")
            with self._lock:
                if len(self._decided) >= MOST_DECIDED:
                    self._decided.clear()
                self._decided[file] = known
        return known[1]

    def _find(self, path: Path, most: int) -> list[IgnoreFile]:
        """The ignore file of a path, if there is one. Raises OSError where there is one that can't be read."""
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
    """Patterns are bytes, as names are. Raises Unreadable."""
    try:
        return without_mark(data).split(b"\n")
    except NotUtf8 as error:  # as PowerShell writes files: no pattern in it would name anything
        raise Unreadable(str(error)) from error


def repository_of(file: Path, roots: Collection[Path]) -> Path | None:
    """The folder of the repository, else of the workspace; None for neither. Looks at the file system."""
    repository = next((parent for parent in file.parents if os.path.exists(parent / ".git")), None)
    if repository is not None:
        return repository
    around = [root for root in roots if file.is_relative_to(root)]
    return min(around, key=lambda root: len(root.parts)) if around else None


def _named_by(found: Sequence[IgnoreFile], file: Path, folders: Sequence[Path]) -> str:
    """The ignore file that names a file, or a folder above it; "" for none. The outermost goes first: what is in an
    ignored folder can't be included again."""
    for path in [*reversed(folders[:-1]), file]:
        for name in reversed(IGNORE_FILES):
            if _ignores([each for each in found if each.name == name], path, is_folder=path != file):
                return name
    return ""


def _ignores(files: Iterable[IgnoreFile], path: Path, is_folder: bool) -> bool:
    """Whether a path is ignored by the nearest of the files that name it."""
    for each in files:
        if each.folder in path.parents:
            found = each.patterns.match(path.relative_to(each.folder).as_posix(), is_folder)
            if found is not None:
                return not found.negated
    return False
