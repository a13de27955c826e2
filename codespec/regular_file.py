"""Read or copy files from untrusted paths: regular files only, with a size limit for reads. Decode UTF-8 text.

Text may have a byte-order mark, and Unix or Windows line endings.
"""

from __future__ import annotations

import codecs
import errno
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

# Opening must neither block on a pipe nor acquire a controlling terminal. Windows has neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
_MARKS |= {codecs.BOM_UTF16_BE: "UTF-16"}  # after UTF-32, because its mark begins with UTF-16's


MAX_NAMED = 256 << 20  # bytes of a file that a user names


class Unreadable(OSError):
    """Raised if the path is not a regular file, or the file exceeds the size limit."""


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file. Raises OSError and Unreadable, like `read_regular`."""
    if not stat.S_ISREG(file.stat().st_mode):  # opening a device can have side effects
        raise Unreadable("it is not a regular file")
    opened = open(os.open(file, _FLAGS), "rb")  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()  # it was replaced after the check
    raise Unreadable("it is not a regular file")


def copy_regular(file: Path, place: Path) -> None:
    """Copy the contents of a regular file, following links. Raises OSError (including Unreadable)."""
    with open_regular(file) as source, place.open("wb") as copy:
        shutil.copyfileobj(source, copy)


def read_regular(file: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes, following links.

    Raises OSError (including Unreadable), and ValueError for an invalid path.
    """
    with open_regular(file) as opened:
        data = opened.read(most + 1)  # st_size is unreliable: it is 0 in /proc, and files can grow
    if len(data) > most:
        raise Unreadable(f"it is longer than {most >> 10} KiB")
    return data


def read_named(file: Path) -> bytes:
    """Return the contents of a regular file that a user named: a pipe or device would block, or fill the memory.

    Raises OSError (including IsADirectoryError and Unreadable).
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    return read_regular(file, MAX_NAMED)


class NotUtf8(ValueError):
    """Raised if bytes are not UTF-8. The message gives the encoding or the first invalid byte."""


def read_text(file: Path) -> str:
    """Return the text of a file, with \\n as its line ending. Raises OSError and NotUtf8."""
    return decode_text(read_named(file)).replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """Decode UTF-8 without its byte-order mark; keep line endings. Raises NotUtf8."""
    try:
        return without_mark(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"byte {error.start}") from error


def without_mark(data: bytes) -> bytes:
    """Remove the UTF-8 byte-order mark. Raises NotUtf8 for the mark of another encoding."""
    name = next((_MARKS[mark] for mark in _MARKS if data.startswith(mark)), "")
    if name:
        raise NotUtf8(f"it is {name}")
    return data.removeprefix(codecs.BOM_UTF8)
