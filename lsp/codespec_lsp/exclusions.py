"""Which documents are neither completed nor sent as context, and why. Knows secret names and the user's globs, has
ignore files looked at off the loop, and remembers for a moment what came out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codespec.secret_files import is_secret
from codespec_lsp.ignore_files import Patterns
from codespec_lsp.ignored import Ignored
from codespec_lsp.uris import path_of, split_uri

MOST_LINKS = 40  # one after the other, as Linux has it
LOOK_AGAIN = 1.0  # seconds after which a document is decided on again
PATIENCE = 0.5  # seconds that a question waits for that; a file system that takes longer holds up no other document


@dataclass(frozen=True, slots=True)
class Rules:
    """What is left out at a time: by the folders that are open, by the user's own globs, which hold from the root of
    each and by names everywhere, and by ignore files."""

    roots: frozenset[Path]
    globs: Patterns
    ignored: Ignored

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
        return self.ignored.why(Path(path), self.roots)

    def _by_globs(self, file: Path) -> bool:
        roots = [root for root in self.roots if file.is_relative_to(root)] or [Path(file.anchor)]
        return any(_names(self.globs, file.relative_to(root).parts) for root in roots)


class Exclusions:
    """Answers for one client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}
        self._looking: dict[str, _Look] = {}
        self._use(Rules(frozenset(), Patterns(()), Ignored()))

    def set_roots(self, roots: Sequence[str]) -> None:
        """The folders that the editor has open."""
        self._use(Rules(frozenset(map(Path, roots)), self._rules.globs, self._rules.ignored))

    def set_globs(self, globs: Sequence[str]) -> None:
        """The user's own."""
        patterns = Patterns(glob.encode("utf-8", "replace") for glob in globs)
        self._use(Rules(self._rules.roots, patterns, self._rules.ignored))

    def known(self, uri: str) -> str | None:
        """Why a document is excluded, as it was found last; "" where it is not; None while that is being found out."""
        return None if uri in self._looking or uri not in self._known else self._known[uri][1]

    async def look(self, uris: Iterable[str]) -> None:
        """Decides anew on documents whose decision is not of this moment. Returns though some may not be known yet."""
        now = self._clock()
        waited = [self._begin(uri, now) for uri in uris if self._is_old(uri, now)]
        left = {look.task: look.began + PATIENCE - now for look in waited}
        if left and max(left.values()) > 0:
            await asyncio.wait([task for task in left if left[task] > 0], timeout=max(left.values()))

    def forget(self, uri: str) -> None:
        """The document is gone."""
        self._known.pop(uri, None)
        look = self._looking.pop(uri, None)
        if look is not None:
            look.task.cancel()

    def _use(self, rules: Rules) -> None:
        """Takes other rules; what is being decided by the old ones is of no use."""
        for uri in list(self._looking):
            self.forget(uri)
        self._rules = rules
        self._known.clear()

    def _is_old(self, uri: str, now: float) -> bool:
        return uri not in self._known or now - self._known[uri][0] > LOOK_AGAIN

    def _begin(self, uri: str, now: float) -> _Look:
        """The look that is under way for a document, or a new one."""
        look = self._looking.get(uri)
        if look is None:
            look = self._looking[uri] = _Look(asyncio.get_running_loop().create_task(self._decide(uri)), now)
        return look

    async def _decide(self, uri: str) -> None:
        reason = await asyncio.to_thread(self._rules.reason, uri)
        self._known[uri] = (self._clock(), reason)
        del self._looking[uri]


@dataclass(frozen=True, slots=True)
class _Look:
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
        found is not None and not found.takes_back
        for count in range(1, len(parts) + 1)
        for found in [patterns.match("/".join(parts[:count]), count < len(parts))]
    )
