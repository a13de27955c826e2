"""Read user-written UTF-8 text, with or without a byte-order mark, with Unix or Windows line endings."""

from __future__ import annotations

import codecs
from pathlib import Path

_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
_MARKS |= {codecs.BOM_UTF16_BE: "UTF-16"}  # after UTF-32, whose mark begins with UTF-16's


class NotUtf8(ValueError):
    """Raised if bytes are not UTF-8. The message gives the encoding or the first invalid byte."""


def read_text(file: Path) -> str:
    """Return the text of a file, with \\n as its line ending. Raises OSError and NotUtf8."""
    return decode_text(file.read_bytes()).replace("\r\n", "\n").replace("\r", "\n")


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
