"""Entries by repository in the user's state folder: one file a repository, bounded each and together, the oldest
entries dropped first. Knows files, modes and a lock; does not know what an entry means.

Files are replaced whole under a lock, so that two daemons lose nothing of each other's and a reader sees no half.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec import json_store
from codespec.user_folders import own_folder, state_folder

SHARE = 4  # a repository takes at most this part of the whole
KEPT_PARTS = (7, 8)  # of a full repository's bytes, what stays: each drop makes room for many entries
LOCK_SECONDS = 5.0
_LOCK_EVERY = 0.02


@dataclass(frozen=True, slots=True)
class Kept:
    """A repository's file: its root, its entries from old to new, its size on disk."""

    root: str
    entries: list[Any]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """What lies on disk."""

    repositories: int = 0
    nbytes: int = 0


class Store:
    """The files under one name in the state folder; `most` bounds their bytes together."""

    def __init__(self, name: str, most: int) -> None:
        self.folder = state_folder() / name
        self.most = most

    def add(self, root: str, entry: Any, notes: MutableSequence[str]) -> bool:
        """Keeps an entry as the newest of its repository; True where older ones had to go. Raises OSError, and
        ConfigError where others can write to the state folder."""
        with self._locked():
            entries = [kept for kept in self.read(key_of(root), notes).entries if kept != entry]
            fitting = _fit([*entries, entry], self.most // SHARE)
            json_store.write(self._file(key_of(root)), {"root": root, "entries": fitting})
            self._drop_oldest(key_of(root))
        return len(fitting) <= len(entries)

    def read(self, key: str, notes: MutableSequence[str]) -> Kept:
        """A repository's entries; none where there is no file, or none that can be read, which `notes` say."""
        file = self._file(key)
        found = json_store.load(file, _read_content, f"what is kept of a repository ({file.name})", "it begins", notes)
        root, entries = found or ("", [])
        return Kept(root, entries, _size(file))

    def read_all(self, notes: MutableSequence[str]) -> list[Kept]:
        """Every repository's entries."""
        return [kept for key in sorted(self.stamps()) if (kept := self.read(key, notes)).root]

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """What differs once a file is another, by its repository's key."""
        found = {}
        for file in self.folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                seen = file.stat()
                found[file.stem] = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        return found

    def use(self) -> Use:
        """How many repositories, and how many bytes; files that were set aside count as bytes."""
        sizes = [_size(file) for file in self._files()]
        return Use(len(list(self.folder.glob("*.json"))), sum(sizes))

    def clear(self, root: str = "") -> int:
        """Deletes a repository's entries, or all; returns of how many repositories. Raises OSError, ConfigError."""
        if not self.folder.exists():
            return 0
        with self._locked():
            key = key_of(root) if root else ""
            doomed = [file for file in self._files() if not root or file.name.startswith(key)]
            for file in doomed:
                file.unlink(missing_ok=True)
        return sum(file.suffix == ".json" for file in doomed)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _files(self) -> list[Path]:
        """All that holds entries, also what was set aside or never finished."""
        return [file for file in self.folder.glob("*") if file.name != "lock" and file.is_file()]

    def _drop_oldest(self, newest: str) -> None:
        """Makes room: the repository that was added to the longest ago goes first."""
        files = sorted(self._files(), key=lambda file: file.stat().st_mtime_ns)
        total = sum(_size(file) for file in files)
        for file in files:
            if total > self.most and file.stem != newest:
                total -= _size(file)
                file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The folder, this user's alone, held by this process."""
        own_folder()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if sys.platform != "win32":
            self.folder.chmod(0o700)  # one that was there before may be open to others
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            _wait_for(handle)
            yield
        finally:
            os.close(handle)


def key_of(root: str) -> str:
    """The name of a repository's file: a hash, so that it may be of any length."""
    return hashlib.blake2b(root.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _wait_for(handle: int) -> None:
    """Takes the lock. Raises OSError after LOCK_SECONDS. Windows has none: nothing is kept there (no user is known)."""
    if sys.platform == "win32":
        return
    import fcntl

    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_LOCK_EVERY)


def _read_content(content: Mapping[str, Any]) -> tuple[str, list[Any]]:
    root, entries = content["root"], content["entries"]
    if not isinstance(root, str) or not root or not isinstance(entries, list):
        raise ValueError("no root and entries")
    return root, entries


def _fit(entries: list[Any], most: int) -> list[Any]:
    """The newest entries that take at most so many bytes as JSON; what is too long by itself leaves nothing."""
    sizes = [len(json.dumps(entry)) + 1 for entry in entries]
    if sum(sizes) <= most:
        return entries
    left, kept, whole = most * KEPT_PARTS[0] // KEPT_PARTS[1], 0, len(entries)
    while kept < whole and sizes[whole - kept - 1] <= left:
        kept += 1
        left -= sizes[whole - kept]
    return entries[whole - kept :]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
