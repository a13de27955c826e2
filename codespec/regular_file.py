"""Files that somebody else chose the name of: read or copied only if they are regular files, and read only up to a
number of bytes.

Knows the file system; does not know what the files are for.
"""

from __future__ import annotations

import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

# Opening must neither wait for a pipe's other end nor make a terminal ours; Windows has neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


class Unreadable(OSError):
    """What has the name is no regular file, or is longer than it may be."""


def open_regular(file: Path) -> BufferedReader:
    """A regular file, opened. Raises as `read_regular` does."""
    if not stat.S_ISREG(file.stat().st_mode):  # a device's driver may act on being opened
        raise Unreadable("it is no regular file")
    opened = open(os.open(file, _FLAGS), "rb")  # noqa: SIM115 - whoever asked closes it
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()  # it was replaced meanwhile
    raise Unreadable("it is no regular file")


def copy_regular(file: Path, place: Path) -> None:
    """Copies the bytes of a regular file, which a link may name. Raises OSError, Unreadable among them."""
    with open_regular(file) as source, place.open("wb") as copy:
        shutil.copyfileobj(source, copy)


def read_regular(file: Path, most: int) -> bytes:
    """The bytes of a regular file, which a link may name. Raises OSError, Unreadable among them, and ValueError for
    what names no file."""
    with open_regular(file) as opened:
        data = opened.read(most + 1)  # not the size: what /proc holds says 0, and files grow
    if len(data) > most:
        raise Unreadable(f"it is longer than {most >> 10} KiB")
    return data
