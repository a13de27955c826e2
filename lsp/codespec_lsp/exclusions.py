"""Which documents are neither completed nor sent as context, and why: secret names, the user's globs, ignore files.

Looks at the file system in threads, since it may take its time, and remembers the result for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codespec.regular_file import Unreadable, read_regular
from codespec.secret_files import is_secret
from codespec_lsp.documents import path_of, split_uri
from codespec_lsp.gitignore import Patterns

IGNORE_FILES = (".gitignore", ".codespecignore")
MOST_IGNORE_BYTES = 256 << 10  # of the ignore files that concern one file
MOST_FOLDERS = 100  # above one file
MOST_KEPT_BYTES = 4 * MOST_IGNORE_BYTES  # of ignore files that are remembered
MOST_DECIDED = 256  # files
# Of a name that no file can have, or none has, there is no ignore file either.
NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL}
MOST_LINKS = 40  # one after the other, as Linux has it
DECIDE_AGAIN = 1.0  # seconds after which a document is decided on again
PATIENCE = 0.5  # seconds that a request waits for that; a slow file system holds up no other document


@dataclass(frozen=True, slots=True)
class Rules:
    """What excludes a document: the user's globs, which hold from the root of each open folder and by names everywhere,
    and ignore files."""

    roots: frozenset[Path]
    globs: Patterns
    ignore_files: IgnoreFiles

    def reason(self, uri: str) -> str:
        """Why a document is excluded, in one sentence; "" where it is not. Waits for the file system."""
        scheme = split_uri(uri).scheme
        if scheme not in ("file", "untitled"):
            return f"{scheme or 'this'} is no file on this machine, so it is not completed."
        path = path_of(uri)
        name = PurePosixPath(path.replace("\\", "/")).name
        if is_secret(path):
            return f"{name} may hold secrets, so it is not completed."
        if self._by_globs(Path(path)):
            return f"{name} is excluded by the setting codespec.exclude."
        if scheme != "file":
            return ""
        if any(is_secret(link) for link in _links(path)):
            return f"{name} is a link to what may hold secrets, so it is not completed."
        return self.ignore_files.reason(Path(path), self.roots)

    def _by_globs(self, file: Path) -> bool:
        roots = [root for root in self.roots if file.is_relative_to(root)] or [Path(file.anchor)]
        return any(_names(self.globs, file.relative_to(root).parts) for root in roots)


class Exclusions:
    """Answers for one client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}
        self._deciding: dict[str, _Decision] = {}
        self._use(Rules(frozenset(), Patterns(()), IgnoreFiles()))

    def set_roots(self, roots: Sequence[str]) -> None:
        """The folders that the editor has open."""
        self._use(Rules(frozenset(map(Path, roots)), self._rules.globs, self._rules.ignore_files))

    def set_globs(self, globs: Sequence[str]) -> None:
        """The user's own."""
        patterns = Patterns(glob.encode("utf-8", "replace") for glob in globs)
        self._use(Rules(self._rules.roots, patterns, self._rules.ignore_files))

    def known(self, uri: str) -> str | None:
        """Why a document is excluded, as it was found last; "" where it is not; None while that is being found out."""
        return None if uri in self._deciding or uri not in self._known else self._known[uri][1]

    async def refresh(self, uris: Iterable[str]) -> None:
        """Decides again on documents whose decision is old. Returns in time, though some may not be known yet."""
        now = self._clock()
        waited = [self._begin(uri, now) for uri in uris if self._is_old(uri, now)]
        left = {decision.task: decision.began + PATIENCE - now for decision in waited}
        if left and max(left.values()) > 0:
            await asyncio.wait([task for task in left if left[task] > 0], timeout=max(left.values()))

    async def repository(self, uri: str) -> Path | None:
        """The folder of the repository, or of the workspace, that a document lies in; None for neither."""
        if split_uri(uri).scheme != "file":
            return None
        return await asyncio.to_thread(_repository, Path(path_of(uri)), self._rules.roots)

    def forget(self, uri: str) -> None:
        """The document is gone."""
        self._known.pop(uri, None)
        decision = self._deciding.pop(uri, None)
        if decision is not None:
            decision.task.cancel()

    def _use(self, rules: Rules) -> None:
        """Takes other rules, and drops what is being decided by the old ones."""
        for uri in list(self._deciding):
            self.forget(uri)
        self._rules = rules
        self._known.clear()

    def _is_old(self, uri: str, now: float) -> bool:
        return uri not in self._known or now - self._known[uri][0] > DECIDE_AGAIN

    def _begin(self, uri: str, now: float) -> _Decision:
        """The decision that is under way for a document, or a new one."""
        decision = self._deciding.get(uri)
        if decision is None:
            decision = self._deciding[uri] = _Decision(asyncio.get_running_loop().create_task(self._decide(uri)), now)
        return decision

    async def _decide(self, uri: str) -> None:
        reason = await asyncio.to_thread(self._rules.reason, uri)
        self._known[uri] = (self._clock(), reason)
        del self._deciding[uri]


@dataclass(frozen=True, slots=True)
class _Decision:
    """A decision under way."""

    task: asyncio.Task[None]
    began: float


def _links(path: str) -> Iterator[str]:
    """What a path names, link by link."""
    with contextlib.suppress(OSError, ValueError):  # it is no link, or no name for a file
        for _ in range(MOST_LINKS):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            yield path


def _names(patterns: Patterns, parts: Sequence[str]) -> bool:
    """Whether a pattern names a path or a folder above it."""
    return any(
        found is not None and not found.negated
        for count in range(1, len(parts) + 1)
        for found in [patterns.match("/".join(parts[:count]), count < len(parts))]
    )


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
        """Why a file is left out, in one sentence; "" where it is not. `roots` are the folders that are open."""
        top = _top(file, roots)
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
            lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
            known = IgnoreFile(path.name, path.parent, seen, len(data), Patterns(lines))
            with self._lock:
                if sum(each.size for each in self._read.values()) + len(data) > MOST_KEPT_BYTES:
                    self._read.clear()
                self._read[path] = known
        if known.size > most:
            raise Unreadable(f"with those in the folders below it is longer than {MOST_IGNORE_BYTES >> 10} KiB")
        return [known]


def _top(file: Path, roots: Collection[Path]) -> Path:
    """The folder where looking ends: of the repository, else of the workspace, else the file's own."""
    return _repository(file, roots) or file.parent


def _repository(file: Path, roots: Collection[Path]) -> Path | None:
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
