"""Where a completion ends in an editor: after its line, or with its block.

Decided per committed byte from text alone, so that it can't depend on drafts or rounds. (Indentation only; syntax
decides finer in a later step.) Knows bytes, no tokens.
"""

from __future__ import annotations

import re
from typing import Literal

from codespec.types import Shape

Resolved = Literal["raw", "line", "block"]
_OPENERS = (b":", b"{", b"(", b"[", b",")


def resolve_shape(shape: Shape, before: bytes, after: str) -> Resolved:
    """`auto` means a line where text stands right of the cursor or a statement is under way, else a block."""
    if shape != "auto":
        return shape
    line = before.rpartition(b"\n")[2]
    right = after.partition("\n")[0].strip()
    if right or (line.strip() and not line.rstrip().endswith(_OPENERS)):
        return "line"
    return "block"


def find_cut(shape: Resolved, before: bytes, text: bytes) -> int | None:
    """How many bytes of `text` belong to the completion, None while it may go on; `before` is what it follows."""
    if shape == "line":
        return _line_end(text)
    if shape == "block":
        return _block_end(before, text)
    return None


def _line_end(text: bytes) -> int | None:
    """The first line break behind something visible, CRLF included."""
    match = re.search(rb"\S[^\S\r\n]*(?=\r?\n)", text)
    return match.end() if match else None


def _block_end(before: bytes, text: bytes) -> int | None:
    """Before the first line that is less indented than the line the cursor is on (or, after an opener, not more)."""
    line = before.rpartition(b"\n")[2]
    indent = _width(line)
    deeper = line.strip() and line.rstrip().endswith(_OPENERS)
    for match in re.finditer(rb"\r?\n([ \t]*)(?=[^\s])", text):
        closes = text[match.end() : match.end() + 1] in b")]}"
        width = _width(match.group(1))
        if text[: match.start()].strip() and (width < indent or (deeper and width == indent and not closes)):
            return len(text[: match.start()].rstrip(b"\r\n"))
    return None


def _width(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" \t"))
