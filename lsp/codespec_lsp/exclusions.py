"""Which files are neither completed nor sent as context, and why. Knows secret names, the user's globs, .gitignore and
.codespecignore; reads those two files and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from codespec.secret_files import is_secret
from codespec_lsp.ignore_files import Patterns
from codespec_lsp.uris import path_of, split_uri

IGNORE_FILES = (".gitignore", ".codespecignore")
LOOK_AGAIN = 1.0  # seconds after which an ignore file is looked at again, and a document is decided on again
MOST_KNOWN = 256  # documents
MOST_BYTES = 1 << 20


class Exclusions:
    """Answers for one client. Ignore files are found from a file upwards, to the folder with .git or a root."""

    def __init__(self, roots: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.set_roots(roots)
        self._globs = Patterns(())
        self._clock = clock
        self._read: dict[Path, tuple[float, Patterns | None]] = {}

    def set_roots(self, roots: Sequence[str]) -> None:
        """The folders that the editor has open."""
        self._roots = {Path(root) for root in roots}
        self._known: dict[str, tuple[float, str]] = {}

    def set_globs(self, globs: Sequence[str]) -> None:
        """The user's own; they hold from the root of each workspace, and by names everywhere."""
        self._globs = Patterns(globs)
        self._known.clear()

    def reason(self, uri: str) -> str:
        """Why a document is excluded, in one sentence; "" where it is not."""
        now = self._clock()
        known = self._known.get(uri)
        if known is None or now - known[0] > LOOK_AGAIN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[uri] = (now, self._find_reason(uri))
        return known[1]

    def _find_reason(self, uri: str) -> str:
        scheme = split_uri(uri).scheme
        if scheme not in ("file", "untitled"):
            return f"{scheme or 'this'} is no file on this machine, so it is not completed."
        path = path_of(uri)
        name = PurePosixPath(path.replace("\\", "/")).name
        if is_secret(path):
            return f"{name} may hold secrets, so it is not completed."
        if self._by_globs(path):
            return f"{name} is excluded by the setting codespec.exclude."
        ignored = self._ignored(Path(path)) if scheme == "file" else ""
        return f"{name} is excluded by {ignored}." if ignored else ""

    def _by_globs(self, path: str) -> bool:
        file = Path(path)
        roots = [root for root in self._roots if file.is_relative_to(root)] or [Path(file.anchor)]
        return any(_match(self._globs, root, file) is True for root in roots)

    def _ignored(self, file: Path) -> str:
        """The ignore file that names a file, or a folder above it; "" for none."""
        top = self._top(file)
        for above in [*reversed([parent for parent in file.parents if parent.is_relative_to(top)][:-1]), file]:
            found = self._decide(above, above != file, top)
            if found:
                return found
        return ""

    def _decide(self, path: Path, is_folder: bool, top: Path) -> str:
        """What the nearest ignore file says that says something."""
        folders = [parent for parent in path.parents if parent.is_relative_to(top)]
        for name in reversed(IGNORE_FILES):
            for folder in folders:
                patterns = self._patterns(folder / name)
                found = patterns.match(path.relative_to(folder).as_posix(), is_folder) if patterns else None
                if found is not None:
                    if not found.takes_back:
                        return name
                    break
        return ""

    def _top(self, file: Path) -> Path:
        """The folder where looking ends: of the repository, else of the workspace, else the file's own."""
        repository = next((parent for parent in file.parents if (parent / ".git").exists()), None)
        if repository is not None:
            return repository
        roots = [root for root in self._roots if file.is_relative_to(root)]
        return min(roots, key=lambda root: len(root.parts)) if roots else file.parent

    def _patterns(self, file: Path) -> Patterns | None:
        now = self._clock()
        known = self._read.get(file)
        if known is None or now - known[0] > LOOK_AGAIN:
            known = self._read[file] = (now, _read_patterns(file))
        return known[1]


def _read_patterns(file: Path) -> Patterns | None:
    try:
        if file.stat().st_size > MOST_BYTES:
            return None
        return Patterns(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except (OSError, ValueError):
        return None  # none there, or not for this user, or no name for a file: git passes over it too


def _match(patterns: Patterns, root: Path, file: Path) -> bool | None:
    """Whether a pattern names the file or a folder above it; None where none says anything."""
    said = None
    parts = file.relative_to(root).parts
    for count in range(1, len(parts) + 1):
        found = patterns.match("/".join(parts[:count]), count < len(parts))
        if found is not None:
            said = not found.takes_back
            if said:
                return True
    return said
