"""Texts that the user wrote, with whatever program: UTF-8, perhaps with a byte-order mark and with Windows' line ends.

Knows bytes and encodings; does not know what the texts are for.
"""

from __future__ import annotations

import codecs
from pathlib import Path

_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
_MARKS |= {codecs.BOM_UTF16_BE: "UTF-16"}  # in this order: UTF-32's begins with UTF-16's


class NotUtf8(ValueError):
    """The bytes are no UTF-8 text; says what they are, or which byte is none."""


def read_text(file: Path) -> str:
    """The text of a file, with \\n as its line ends. Raises OSError and NotUtf8."""
    return decode_text(file.read_bytes()).replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """The text, line ends untouched, without a byte-order mark. Raises NotUtf8."""
    try:
        return without_mark(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"byte {error.start}") from error


def without_mark(data: bytes) -> bytes:
    """UTF-8's bytes without a byte-order mark. Raises NotUtf8 for the mark of another encoding."""
    name = next((_MARKS[mark] for mark in _MARKS if data.startswith(mark)), "")
    if name:
        raise NotUtf8(f"it is {name}")
    return data.removeprefix(codecs.BOM_UTF8)
