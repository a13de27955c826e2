"""Remember deleted text as a draft for the text that is typed at the same position again.

This helps with retyping, editing a copy or a change of mind. Each document keeps a few positions with texts of bounded
length. Offsets are in code points.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_lsp.buffer import Edit

MOST_PLACES = 8
MOST_TEXT = 16_384  # characters of one deletion
MOST_TYPED = 200  # maximum characters between the start of a deletion and the cursor
LEAST = 4  # minimum non-blank characters: shorter text is typed faster than it is drafted


@dataclass(slots=True)
class Deletion:
    """Deleted text; `start` is its offset in the current text."""

    start: int
    text: str


class Deletions:
    """The last deletions in one document, the latest first."""

    def __init__(self) -> None:
        self._places: list[Deletion] = []

    def edited(self, edit: Edit) -> None:
        """Shift the recorded deletions and add the text that the edit removed. Adjacent deletions are merged."""
        edit = edit.least()
        if edit.removed and self._joins(edit):
            return
        self._move(edit)
        if edit.removed:
            deletion = Deletion(edit.start, edit.removed[:MOST_TEXT])
            self._places = [deletion, *self._places][:MOST_PLACES]

    def find(self, offset: int, before: str, after: str) -> str:
        """Return the deleted text at the cursor, without the part that was retyped, or "".

        The result is "" if the text is there again. `before` and `after` are the text around the cursor, at least
        MOST_TYPED characters on each side.
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
        """Merge text removed right before (backspace) or after (delete) the latest deletion; return whether it was."""
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
        """Shift the deletions after the edit and drop those inside the removed text."""
        end, grown = edit.start + len(edit.removed), len(edit.text) - len(edit.removed)
        self._places = [
            place if place.start <= edit.start else Deletion(place.start + grown, place.text)
            for place in self._places
            if place.start <= edit.start or place.start >= end
        ]
