"""Decide which files a repository's .gitignore files exclude, with git's rules, plus .codespecignore files.

The language server and the drafter's training data use the same rules. Ignore files are read within size limits and
cached until they change.
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
        found: list[IgnoreFile] = []
        for path in (folder / name for folder in folders for name in reversed(IGNORE_FILES)):
            try:
                found += self._find(path, MOST_IGNORE_BYTES - sum(each.size for each in found))
            except OSError as error:
                why = str(error) if isinstance(error, Unreadable) else error.strerror or type(error).__name__
                return f"{file.name} is not completed, because {path} can't be followed ({why}): fix or remove it."
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


def _named_by(found: Sequence[IgnoreFile], file: Path, folders: Sequence[Path]) -> str:
    """Return the name of the ignore file that excludes a file or a parent folder, or "".

    Checks the outermost folder first, because files in an excluded folder can't be included again.
    """
    for path in [*reversed(folders[:-1]), file]:
        for name in reversed(IGNORE_FILES):
            if _ignores([each for each in found if each.name == name], path, is_folder=path != file):
                return name
    return ""


def _ignores(files: Iterable[IgnoreFile], path: Path, is_folder: bool) -> bool:
    """Return whether a path is ignored, by the nearest ignore file with a matching pattern."""
    for each in files:
        if each.folder in path.parents:
            found = each.patterns.match(path.relative_to(each.folder).as_posix(), is_folder)
            if found is not None:
                return not found.negated
    return False
