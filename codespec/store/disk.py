"""Handle the store's files and folders: free space, sizes, growth, locks, and protection against links.

Also the lines on stderr by which the commands report.
"""

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

MARGIN = 50_000_000  # bytes to keep free
EVERY = 0.5  # seconds between two looks at a growing folder


def say(*lines: str) -> None:
    """Print lines for the user on stderr, apart from a command's output."""
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
    """Raise NoRoom, with both numbers, if the disk of a folder has less than `needed` bytes free."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise NoRoom(
            f"{what} needs {written(needed)} of disk, and {folder} has {written(free)} free: free some, or set "
            "XDG_DATA_HOME and XDG_CACHE_HOME to folders on another disk."
        )


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; files that vanish meanwhile count as 0."""
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
    """Report the percentage of `size` bytes in the folder while the block runs, each value once and none lower."""
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
    """Return whether this is a regular file with one hard link: writing to it changes nothing elsewhere."""
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def is_own_folder(path: Path) -> bool:
    """Return whether this is a folder and not a link."""
    return path.is_dir() and not path.is_symlink()


def drop(path: Path) -> None:
    """Delete a file, a folder or a link, if present; never the target of a link."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_own_folder(path: Path) -> None:
    """Raise ModelError if a link or a file takes the place of one of codespec's own folders."""
    if os.path.lexists(path) and not is_own_folder(path):
        raise ModelError(f"{path} is a link or a file, not a folder of codespec's own", "remove it")


def make_own_folder(path: Path) -> None:
    """Create a folder. Raises ModelError if a link or a file is in its place."""
    check_own_folder(path)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked(file: Path, waiting: str, say: Say) -> Iterator[None]:
    """Hold a lock file. If another process holds it, report `waiting` and wait."""
    with lock_file(file, 0) as got:
        if got:
            yield
            return
    say(waiting)
    with lock_file(file):
        yield
