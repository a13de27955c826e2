"""Choose the places where the next edit is looked for: the cursor's, then those that the last change concerns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from codespec_lsp.buffer import Buffer
from codespec_lsp.documents import Document
from codespec_lsp.edit_history import LineEdit
from codespec_lsp.edit_types import Change

MAX_OTHERS = 2
ABOVE, BELOW = 1, 3  # rows around an anchor in which the cursor leaves it alone: the middle of the smallest window
APART = 8  # rows between two places, so that their windows don't overlap
MIN_WORD = 3  # characters of a word that is looked for
_WORD = re.compile(r"[^\W\d]\w*")


class Anchors:
    """The cursor's place in each document.

    It stays while the cursor moves in its middle, so that the prompt begins the same from key to key.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def edited(self, uri: str, edit: LineEdit) -> None:
        """Move a document's anchor with the text."""
        if uri in self._rows and edit.row + len(edit.old) <= self._rows[uri]:
            self._rows[uri] += edit.grown

    def place(self, document: Document, row: int) -> int:
        """Return the row in focus for a cursor in `row`."""
        anchor = self._rows.get(document.uri, row)
        if not (anchor - ABOVE <= row <= anchor + BELOW and anchor < len(document.buffer.lines)):
            anchor = row
        self._rows[document.uri] = anchor
        return anchor

    def close(self, uri: str) -> None:
        """Drop the anchor of a closed document."""
        self._rows.pop(uri, None)


def other_places(last: Change | None, buffer: Buffer, here: int, problems: Sequence[int]) -> list[int]:
    """Return up to MAX_OTHERS rows apart from `here` and from each other.

    First the rows that hold a word which the last change removed, then those with `problems`, the nearest after `here`
    first.
    """
    rows = [*_rows_with(removed_words(last), buffer)] if last is not None else []
    places: list[int] = []
    for group in (rows, problems):
        for row in sorted(group, key=lambda row: (row < here, abs(row - here))):
            if 0 <= row < len(buffer.lines) and all(abs(row - each) > APART for each in (here, *places)):
                places.append(row)
    return places[:MAX_OTHERS]


def removed_words(change: Change) -> set[str]:
    """Return the words that a change removed: not of its new text, and long enough to mean something."""
    return {word for word in _WORD.findall(change.old) if len(word) >= MIN_WORD} - set(_WORD.findall(change.new))


def _rows_with(words: set[str], buffer: Buffer) -> Iterator[int]:
    if not words:
        return
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(words)))})\b")
    for row, line in enumerate(buffer.lines):
        if any(word in line for word in words) and named.search(line):
            yield row
