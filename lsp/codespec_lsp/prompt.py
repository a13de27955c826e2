"""What is asked of the daemon for one cursor. Knows DESIGN.md's request and its bounds; knows no HTTP and no editor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codespec_grammars import Cursor

from codespec_lsp.buffer import Buffer, Place
from codespec_lsp.texts import Spot

MOST_BYTES = 64 * 1024  # on each side of the cursor
MOST_LANGUAGE, MOST_PATH = 64, 4096  # characters
STEPS = 4  # the prefix's start moves by a quarter
_LONE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of another file."""

    path: str
    text: str


def clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 can't spell; no place in it moves."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def find_spot(uri: str, buffer: Buffer, place: Place, selected: str | None = None, until: Place | None = None) -> Spot:
    """The text around a place. With `selected` it is as if that stood between the place and `until`, and the cursor
    behind it."""
    prefix = _within(lambda most: buffer.before(place, most, most // STEPS))
    suffix = _within(lambda most: buffer.after(until or place, most))
    offset = buffer.offset(place) - len(prefix)
    return Spot(uri, prefix + clean(selected or ""), suffix, offset)


def _within(window: Any) -> str:
    """A window of at most MOST_BYTES: of fewer characters where some take more bytes, by halves, so that typing does
    not move it."""
    most = MOST_BYTES
    while len((text := clean(window(most))).encode()) > MOST_BYTES:
        most //= 2
    return text


def body(
    spot: Spot,
    *,
    document: str,
    version: int,
    language: str,
    path: str,
    snippets: Sequence[Snippet],
    cursor: Cursor,
    trigger: str,
    max_tokens: int,
) -> dict[str, Any]:
    """The request as JSON values."""
    return {
        "document": document,
        "version": version,
        "language": clean(language)[:MOST_LANGUAGE],
        "path": clean(path)[-MOST_PATH:],
        "prefix": spot.prefix,
        "prefix_offset": spot.offset,
        "suffix": spot.suffix,
        "snippets": [{"path": snippet.path, "text": snippet.text} for snippet in snippets],
        "cursor": {"context": cursor.context.value, "open_brackets": cursor.open_brackets, "indent": cursor.indent},
        "trigger": trigger,
        "max_tokens": max_tokens,
    }
