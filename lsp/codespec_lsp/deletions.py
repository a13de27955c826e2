"""What stood somewhere before it was deleted: a guess at what is written there again. Retyping, an edit of a copy, a
change of mind.

Kept for each document, a few places and a bounded length, and gone with it. Knows edits and offsets (code points);
knows no documents and nothing of what may be sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_lsp.buffer import Edit

MOST_PLACES = 8
MOST_TEXT = 16_384  # characters of one place
MOST_TYPED = 200  # characters behind a place, up to which the cursor is still there
LEAST = 4  # characters beside white space: less is typed faster than it is guessed


@dataclass(slots=True)
class Deletion:
    """`text` stood at `start`, an offset in the text as it is now."""

    start: int
    text: str


class Deletions:
    """The last places of one document where something was deleted, the latest first."""

    def __init__(self) -> None:
        self._places: list[Deletion] = []

    def edited(self, edit: Edit) -> None:
        """Moves the places along, and takes what the edit removed. What is removed bit by bit is one place."""
        edit = edit.least()
        if edit.removed and self._joins(edit):
            return
        self._move(edit)
        if edit.removed:
            deletion = Deletion(edit.start, edit.removed[:MOST_TEXT])
            self._places = [deletion, *self._places][:MOST_PLACES]

    def find(self, offset: int, before: str, after: str) -> str:
        """What stood where the cursor is, without what is typed again by now; "" if nothing did, or if it stands there
        again. `before` and `after` are the text around the cursor, its next MOST_TYPED characters at least.
        """
        found = ""
        for place in self._places:
            typed = offset - place.start
            if not 0 <= typed <= min(MOST_TYPED, len(before)):
                continue
            written = before[len(before) - typed :]
            text = place.text[typed:] if place.text.startswith(written) else place.text
            if len(text) > len(found) and len("".join(text.split())) >= LEAST and not after.startswith(text):
                found = text
        return found

    def _joins(self, edit: Edit) -> bool:
        """Adds to the latest place what was removed right before it (backspace) or right behind it (delete)."""
        if edit.text or not self._places:
            return False
        last, end = self._places[0], edit.start + len(edit.removed)
        if end == last.start:
            text = edit.removed + last.text
        elif edit.start == last.start:
            text = last.text + edit.removed
        else:
            return False
        del self._places[0]
        self._move(edit)
        self._places.insert(0, Deletion(edit.start, text[:MOST_TEXT]))
        return True

    def _move(self, edit: Edit) -> None:
        """Places behind the edit move with the text; those inside what it removed are gone."""
        end, grown = edit.start + len(edit.removed), len(edit.text) - len(edit.removed)
        self._places = [
            place if place.start <= edit.start else Deletion(place.start + grown, place.text)
            for place in self._places
            if place.start <= edit.start or place.start >= end
        ]
