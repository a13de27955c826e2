"""Check, measure, watch, lock and delete the store's files and folders, and print messages on stderr."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codespec.errors import ModelError
from codespec.files import lock_file

Say = Callable[[str], None]  # takes one line for the user
Tell = Callable[[int], None]  # takes a percentage

MARGIN = 50_000_000  # bytes that stay free on the disk
MEASURE_INTERVAL_S = 0.5  # seconds between two measurements of a growing folder


def say(*lines: str) -> None:
    """Print messages for the user on stderr, because stdout is reserved for a command's results."""
    for line in lines:
        print(f"codespec: {line}", file=sys.stderr, flush=True)


class NoRoom(ModelError):
    """Raised if the disk has too little free space."""


def written(size: float) -> str:
    """Return a human-readable byte count: 93 MB, 1.5 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.9995 * unit:
            return f"{size / unit:.{1 if size < 9.95 * unit else 0}f} {name}"
    return f"{size:.0f} bytes"


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Raise NoRoom unless the folder's disk has `needed` bytes free, plus MARGIN."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise NoRoom(
            f"{what} needs {written(needed)} of disk space, and {folder} has {written(free)} free: free some, or set "
            "XDG_DATA_HOME and XDG_CACHE_HOME to folders on another disk."
        )


def folder_size(folder: Path) -> int:
    """Return the total bytes of all files below a folder, skipping files that are deleted during the count."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(parent, file)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def watched(folder: Path, size: int, tell: Tell) -> Iterator[None]:
    """While the block runs, report the folder's size as a percentage of `size` bytes whenever the percentage grows."""
    over = threading.Event()

    def watch() -> None:
        reported = -1
        while True:
            percent = min(100, 100 * folder_size(folder) // max(1, size))
            if percent > reported:
                tell(percent)
                reported = percent
            if over.wait(MEASURE_INTERVAL_S):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_own_file(path: Path) -> bool:
    """Return whether a path is a regular file with one hard link, so that no other path leads to the file's data."""
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder and not a symbolic link."""
    return path.is_dir() and not path.is_symlink()


def drop(path: Path) -> None:
    """Delete a file, a folder or a link if it exists, but never the target of a link."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_own_folder(path: Path) -> None:
    """Raise ModelError if the path of one of codespec's folders is a link or a file."""
    if os.path.lexists(path) and not is_own_folder(path):
        raise ModelError(f"{path} must be a folder, but is a link or a file", "remove this link or file")


def make_own_folder(path: Path) -> None:
    """Create a folder unless it exists. Raises ModelError if the path is a link or a file."""
    check_own_folder(path)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked(file: Path, waiting: str, say: Say) -> Iterator[None]:
    """Hold a lock file while the block runs; call `say(waiting)` if another process holds the lock."""
    with lock_file(file, 0) as is_held:
        if is_held:
            yield
            return
    say(waiting)
    with lock_file(file):
        yield
