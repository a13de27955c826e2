"""Free space, the size of a folder, how sizes are written, a lock that one process holds, and files and folders of our
own that no link may stand for.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codespec.errors import ModelError

Say = Callable[[str], None]  # takes one line for the user

MARGIN = 50_000_000  # bytes that stay free


class NoRoom(ModelError):
    """The disk has too little room."""


def written(size: float) -> str:
    """Bytes as people write them: 93 MB, 1.5 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.9995 * unit:
            return f"{size / unit:.{1 if size < 9.95 * unit else 0}f} {name}"
    return f"{size:.0f} bytes"


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Raises NoRoom with both numbers if the disk of a folder has no room for so many more bytes."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed + MARGIN > free:
        raise NoRoom(
            f"{what} takes {written(needed)} of disk and {written(free)} are free in {folder}: free some, or set "
            "XDG_DATA_HOME and XDG_CACHE_HOME to folders on another disk."
        )


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count as none."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(parent, file)).st_size
            except FileNotFoundError:
                continue
    return total


def is_own_file(path: Path) -> bool:
    """Whether this is a regular file with one name: writing to it changes nothing that lies elsewhere."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def is_own_folder(path: Path) -> bool:
    """Whether this is a folder and no link to one."""
    return path.is_dir() and not path.is_symlink()


def drop(path: Path) -> None:
    """Deletes a file, a folder or a link, if there is one; never what a link leads to."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_own_folder(path: Path) -> None:
    """Raises ModelError if a link or a file is where a folder of codespec's own belongs."""
    if os.path.lexists(path) and not is_own_folder(path):
        raise ModelError(f"{path} is no folder of codespec's own but a link or a file: remove it.")


def make_own_folder(path: Path) -> None:
    """Makes a folder. Raises ModelError if a link or a file is in its place."""
    check_own_folder(path)
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked(file: Path, waiting: str, say: Say) -> Iterator[None]:
    """Holds a lock file. While another process holds it, says `waiting` and waits."""
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
