"""Exclude documents from completion and from context by secret file names, user globs and ignore files.

The file system is read in threads, because it may be slow, and each decision is cached for a short time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from codespec.exclusions.ignore_files import MAX_FOLDERS, IgnoreFiles, Patterns, repository_of
from codespec.exclusions.secrets import is_secret
from codespec_lsp.documents import other_paths, path_of, split_uri

MAX_LINKS = 40  # in a chain, the limit of Linux
MAX_DECISION_AGE_S = 1.0  # seconds after which a decision is repeated
NONE = Patterns(())
DECISION_TIMEOUT_S = 0.5  # seconds that a request waits for a decision


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that exclude a document: secrets, ignore files, and the user's globs.

    Globs are matched relative to each of the `roots`, which are the open folders. `secrets` matches additional files
    with secrets, and `not_secrets` matches files that are completed although their names look secret.
    """

    roots: frozenset[Path]
    globs: Patterns
    ignore_files: IgnoreFiles
    secrets: Patterns = NONE
    not_secrets: Patterns = NONE

    def reason(self, uri: str) -> str:
        """Return one sentence that says why a document is excluded, or "". Blocks while reading the file system."""
        scheme = split_uri(uri).scheme
        if scheme not in ("file", "untitled"):
            of = f"of the scheme {scheme!r}" if scheme else "without a URI scheme"
            return f"A document {of} is not a file on this machine, so it is not completed."
        path = path_of(uri)
        name = PurePosixPath(path.replace("\\", "/")).name
        if self._is_secret(path, uri):
            return f"{name} may hold secrets, so it is not completed."
        if path.count("/") + path.count("\\") > MAX_FOLDERS:  # ignore files are read in each folder
            return f"{name[:80]} lies in more than {MAX_FOLDERS} folders, so it is not completed."
        return next(filter(None, (self._reason_of(each, name, scheme == "file") for each in _possible_paths(uri))), "")

    def _is_secret(self, path: str, uri: str = "") -> bool:
        """Return whether a file's name, as a path or a URI, suggests that the file contains secrets."""
        if self._matches(self.secrets, Path(path)):
            return True
        return (is_secret(uri) or is_secret(path)) and not self._matches(self.not_secrets, Path(path))

    def _reason_of(self, path: str, name: str, saved: bool) -> str:
        if self._matches(self.globs, Path(path)):
            return f"{name} is excluded by the setting codespec.exclude."
        if not saved:
            return ""
        if any(self._is_secret(link) for link in _links(path)):
            return f"{name} links to a file that may hold secrets, so it is not completed."
        return self.ignore_files.reason(Path(path), self.roots)

    def lets_out(self, path: Path) -> bool:
        """Return whether a file may be sent. A path that changes when converted to a URI and back is refused."""
        uri = path.as_uri()
        return path_of(uri) == str(path) and not is_secret(uri) and not self.reason(uri)

    def repository_of(self, uri: str) -> tuple[Path, Path | None]:
        """Return the path of a document's file, and the path of the file's repository or None. Raises OSError."""
        file = Path(path_of(uri))
        is_file = split_uri(uri).scheme == "file" and file.is_absolute()
        return file, repository_of(file, self.roots) if is_file else None

    def shown(self, path: str) -> str:
        """Return a path as shown to the model: relative to an open folder that contains it, else its last two parts."""
        parts = PurePosixPath(path.replace("\\", "/")).parts
        above = max((len(root.parts) for root in self.roots if Path(path).is_relative_to(root)), default=0)
        last = [each for each in parts[-2:] if not each.endswith((":", "/"))]  # not a drive, nor the root
        return "/".join(parts[above:] if above else last)

    def sendable(self, paths: Iterable[Path], repository: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the paths that may be sent, each with its resolved target. Blocks while reading the file system.

        The target must be in the repository, not in a nested repository, and the rules must allow both paths. Raises
        OSError, ValueError or RuntimeError.
        """
        top, roots = repository.resolve(), [root.resolve() for root in self.roots]
        for path in paths:
            target = path.resolve()
            if repository_of(target, roots) == top and self.lets_out(path) and self.lets_out(target):
                yield path, target

    def _matches(self, globs: Patterns, file: Path) -> bool:
        """Return whether a glob matches a file, or one of the folders between an open folder and the file."""
        if not globs:
            return False
        for root in [root for root in self.roots if file.is_relative_to(root)] or [Path(file.anchor)]:
            parts = file.relative_to(root).parts
            for count in range(1, len(parts) + 1):
                pattern = globs.match("/".join(parts[:count]), count < len(parts))
                if pattern is not None and not pattern.negated:
                    return True
        return False


class Exclusions:
    """The exclusion decisions for one client. The `rules` are replaced when settings or folders change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}
        self._deciding: dict[str, tuple[asyncio.Task[None], float]] = {}  # by URI, with the start time
        self._use(Rules(frozenset(), NONE, IgnoreFiles()))

    def set_roots(self, roots: Sequence[str]) -> None:
        """Set the folders that are open in the editor."""
        self._use(replace(self.rules, roots=frozenset(map(Path, roots))))

    def set_globs(self, globs: Sequence[str], secrets: Sequence[str], not_secrets: Sequence[str]) -> None:
        """Set the user's globs of excluded files, of secret files, and of files that are not secret."""
        theirs = Patterns(globs)
        self._use(replace(self.rules, globs=theirs, secrets=Patterns(secrets), not_secrets=Patterns(not_secrets)))

    async def end(self) -> None:
        """Stop the git processes after all documents have been closed."""
        await asyncio.to_thread(self.rules.ignore_files.close)

    def known(self, uri: str) -> str | None:
        """Return why the last decision excludes a document, "" if the document is allowed, or None if undecided."""
        return None if uri in self._deciding or uri not in self._known else self._known[uri][1]

    def may_go_along(self, uri: str) -> bool:
        """Return whether a document may be sent with another document's request. A file with a secret name may not."""
        return self.known(uri) == "" and not is_secret(uri) and not is_secret(path_of(uri))

    async def refresh(self, uris: Iterable[str]) -> None:
        """Renew old decisions. Waits at most DECISION_TIMEOUT_S, so some documents may be undecided afterwards."""
        now = time.monotonic()
        old = [uri for uri in uris if uri not in self._known or now - self._known[uri][0] > MAX_DECISION_AGE_S]
        waited = [self._begin(uri, now) for uri in old]
        left = {task: began + DECISION_TIMEOUT_S - now for task, began in waited}
        if left and max(left.values()) > 0:
            await asyncio.wait([task for task in left if left[task] > 0], timeout=max(left.values()))

    async def follow(self, uri: str) -> AsyncIterator[None]:
        """Renew a decision. Yields after `refresh`, and after each further decision until one is final."""
        await self.refresh([uri])
        yield
        while uri in self._deciding:
            await asyncio.wait([self._deciding[uri][0]])
            yield

    def forget(self, uri: str) -> None:
        self._known.pop(uri, None)
        if uri in self._deciding:
            self._deciding.pop(uri)[0].cancel()

    def _use(self, rules: Rules) -> None:
        """Replace the rules, drop all decisions made under the old rules, and restart the unfinished decisions."""
        running = list(self._deciding)
        for uri in running:
            self.forget(uri)
        self.rules = rules
        self._known.clear()
        for uri in running:
            self._begin(uri, time.monotonic())

    def _begin(self, uri: str, now: float) -> tuple[asyncio.Task[None], float]:
        """Return the running decision for a document and its start time. Starts a decision if none is running."""
        if uri not in self._deciding:
            self._deciding[uri] = asyncio.get_running_loop().create_task(self._decide(uri)), now
        return self._deciding[uri]

    async def _decide(self, uri: str) -> None:
        reason = await asyncio.to_thread(self.rules.reason, uri)
        self._known[uri] = (time.monotonic(), reason)
        del self._deciding[uri]


def _possible_paths(uri: str) -> list[str]:
    """Return the URI's path and, if no such file exists, the existing files that the URI may mean instead."""
    path = path_of(uri)
    if os.path.lexists(path):
        return [path]
    return [path, *(other for other in other_paths(uri) if os.path.isfile(other))]


def _links(path: str) -> Iterator[str]:
    """Yield the target of each symbolic link in the chain that starts at a path."""
    with contextlib.suppress(OSError, ValueError):  # not a link, or not a valid file name
        for _ in range(MAX_LINKS):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            yield path
