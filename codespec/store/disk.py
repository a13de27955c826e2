"""The store's files and folders: free space, sizes, progress, locks, and checks for links; messages on stderr."""

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
EVERY = 0.5  # seconds between two measurements of a growing folder


def say(*lines: str) -> None:
    """Print messages for the user on stderr, because stdout is for a command's results."""
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
    """Raise NoRoom if the folder's disk has fewer than `needed` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise NoRoom(
            f"{what} needs {written(needed)} of disk, and {folder} has {written(free)} free: free some, or set "
            "XDG_DATA_HOME and XDG_CACHE_HOME to folders on another disk."
        )


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder, even if some are deleted meanwhile."""
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
    """While the block runs, report the folder's size in percent of `size` bytes, in ascending order without repeats."""
    over = threading.Event()

    def watch() -> None:
        reported = -1
        while True:
            percent = min(100, 100 * folder_size(folder) // max(1, size))
            if percent > reported:
                tell(percent)
                reported = percent
            if over.wait(EVERY):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_own_file(path: Path) -> bool:
    """Return whether this is a regular file with one hard link, so that no other path reaches its data."""
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def is_own_folder(path: Path) -> bool:
    """Return whether this is a folder and not a symbolic link."""
    return path.is_dir() and not path.is_symlink()


def drop(path: Path) -> None:
    """Delete a file, a folder or a link if it exists, but never the target of a link."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_own_folder(path: Path) -> None:
    """Raise ModelError if a link or a file is in the place of one of codespec's folders."""
    if os.path.lexists(path) and not is_own_folder(path):
        raise ModelError(f"{path} is a link or a file, but must be a folder of codespec", "remove it")


def make_own_folder(path: Path) -> None:
    """Create a folder unless it exists. Raises ModelError if a link or a file is in its place."""
    check_own_folder(path)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked(file: Path, waiting: str, say: Say) -> Iterator[None]:
    """Hold a lock file while the block runs; call `say(waiting)` if another process holds the file."""
    with lock_file(file, 0) as is_held:
        if is_held:
            yield
            return
    say(waiting)
    with lock_file(file):
        yield
