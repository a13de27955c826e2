"""The memory of accepted texts as the daemon uses it: it keeps what its user accepted, and the lookup proposer finds in
it how such a text went on. Files are read and written on its own thread, never on the event loop or between rounds.

Serves only `scopes`, those of the daemon's own user; without them it serves nobody. Knows repositories by their roots;
does not know how a text came to be accepted.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from codespec.errors import ConfigError
from codespec.memory.places import MOST_PREFIX, MOST_SUFFIX, Place, keep_place, places_store
from codespec.memory.store import Store, Use, key_of

if TYPE_CHECKING:
    from codespec.memory.index import TextIndex

NAME = "memory"
MB = 1_000_000
LEAD = 96  # characters before an accepted text that are kept with it: a lookup matches no more
LEAST_TEXT = 4  # characters: shorter ones save nothing
MOST_OPEN = 2  # repositories whose texts are sorted at once
SETTLED = 0.1  # seconds after which a folder's time tells whether it changed: file systems count in steps


@dataclass(frozen=True, slots=True)
class Accepted:
    """A text that stands in a document because its user accepted it: `lead` came before it, `following` after it."""

    root: str
    path: str
    language: str
    lead: str
    text: str
    following: str


@dataclass(slots=True)
class _Open:
    """A repository's texts, sorted; `stamp` is the state of the file that they were read from."""

    index: TextIndex
    stamp: tuple[int, int, int] | None


def texts_store(most_mb: int = 0) -> Store:
    """Where texts are kept."""
    return Store(NAME, most_mb * MB)


class Memory:
    """`most_mb` bounds the texts on disk (0: none are kept); `gather` keeps places too."""

    def __init__(self, most_mb: int = 0, gather: bool = False) -> None:
        self.scopes: frozenset[str] = frozenset()
        self.notes: MutableSequence[str] = []
        self.gathers = gather
        self.remembers = most_mb > 0
        self.kept = self.drafts = 0  # texts kept and drafts made since the daemon began
        self._texts = texts_store(most_mb)
        self._places = places_store()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="codespec-memory")
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._loading: set[str] = set()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._seen = 0  # the folder's time when `_stamps` were taken; 0: not settled
        self._failed = False

    def takes(self, scope: str) -> bool:
        """Whether what a client accepts is kept at all."""
        return scope in self.scopes and (self.remembers or self.gathers)

    def accept(self, accepted: Accepted) -> Future[None]:
        """Keeps a text, in a moment."""
        return self._worker.submit(self._keep, accepted)

    def find(self, scope: str, path: str) -> TextIndex | None:
        """The texts of the repository that a file lies in; None where there are none for this client, or not yet."""
        if not self.remembers or scope not in self.scopes or not path:
            return None
        self._look()
        key = next((key for key in _keys_above(path) if key in self._stamps), None)
        if key is None:
            return None
        opened = self._open.get(key)
        if opened is not None and opened.stamp == self._stamps[key]:
            return opened.index
        if key not in self._loading:
            self._loading.add(key)
            self._worker.submit(self._load, key)
        return None  # what is open may have been deleted meanwhile

    def use(self) -> dict[str, Use]:
        """What lies on disk, by kind."""
        return {"texts": self._texts.use(), "places": self._places.use()}

    def settle(self) -> None:
        """Waits until all that was begun is written and read."""
        self._worker.submit(lambda: None).result()

    def close(self) -> None:
        """Ends the thread once all is written."""
        self._worker.shutdown()

    def _look(self) -> None:
        """Notices what was written or deleted, by this process or another, since the last look."""
        try:
            changed = os.stat(self._texts.folder).st_mtime_ns
        except OSError:
            changed = 0
        if changed and changed == self._seen:
            return
        self._stamps = self._texts.stamps() if changed else {}
        for key in [key for key in list(self._open) if key not in self._stamps]:
            self._open.pop(key, None)  # it was deleted: nothing of it is to be drafted
        self._seen = changed if time.time_ns() - changed > SETTLED * 1e9 else 0

    def _load(self, key: str) -> None:
        """On the thread: reads and sorts a repository's texts."""
        from codespec.memory.index import TextIndex  # with numpy, which the daemon's first moments do without

        stamp = self._texts.stamps().get(key)
        entries = self._texts.read(key, self.notes).entries
        texts = [entry.encode("utf-8", "replace") for entry in entries if isinstance(entry, str)]
        if stamp is not None:
            self._open[key] = _Open(TextIndex(texts), stamp)
            self._open.move_to_end(key)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        self._loading.discard(key)

    def _keep(self, accepted: Accepted) -> None:
        """On the thread: writes what is to be kept. A failure is said once; later texts are tried all the same."""
        try:
            remembered = self.remembers and len(accepted.text.strip()) >= LEAST_TEXT
            if self.gathers:
                keep_place(self._places, _place(accepted), self.notes)
            if remembered:
                self._remember(accepted)
            self.kept += remembered or self.gathers
            self._failed = False
        except (OSError, ConfigError) as error:
            if not self._failed:
                self._failed = True
                self.notes.append(_unkept(self._texts, error))

    def _remember(self, accepted: Accepted) -> None:
        key, entry = key_of(accepted.root), accepted.lead[-LEAD:] + accepted.text
        opened, stamp = self._open.get(key), self._texts.stamps().get(key)
        dropped = self._texts.add(accepted.root, entry, self.notes)
        if opened is None:
            return
        if dropped or opened.stamp != stamp or not opened.index.add(entry.encode("utf-8", "replace")):
            self._load(key)
        else:
            opened.stamp = self._texts.stamps().get(key)


def _place(accepted: Accepted) -> Place:
    path = PurePath(accepted.path).relative_to(accepted.root).as_posix()
    prefix, suffix = accepted.lead[-MOST_PREFIX:], accepted.following[:MOST_SUFFIX]
    return Place(accepted.root, path, accepted.language, prefix, suffix, accepted.text)


def _unkept(store: Store, error: OSError | ConfigError) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
    return f"what you accept can't be kept in {store.folder} ({why}): make it writable, or set memory_mb = 0"


@lru_cache(maxsize=64)
def _keys_above(path: str) -> tuple[str, ...]:
    """The keys that a file's repository may have, the nearest folder's first."""
    return tuple(key_of(str(folder)) for folder in PurePath(path).parents)
