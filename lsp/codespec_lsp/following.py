"""A suggestion that the user types along: how much of it stands in the document already. Knows edits; knows no models.

A following is lost when an edit says anything else, and is then of no use any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_lsp.buffer import Edit

# What an editor inserts by itself while one character is typed.
PAIRS = ("()", "[]", "{}", '""', "''", "``", "<>")


@dataclass(slots=True)
class Following:
    """`start` is where the text begins, in code points of the document; `typed` of it stand there."""

    start: int
    typed: int = 0
    lost: bool = False

    @property
    def tip(self) -> int:
        """Where the rest of the text would go."""
        return self.start + self.typed

    def follow(self, edit: Edit, text: str) -> str:
        """Takes an edit; returns what of `text` it put at the tip. Taking back what was typed along is no loss, but
        returns nothing."""
        if self.lost:
            return ""
        edit = edit.least()
        if not edit.removed and not edit.text:
            return ""
        if edit.removed:
            self._take_back(edit)
            return ""
        if edit.start != self.tip or not text.startswith(edit.text, self.typed):
            self.lost = True
            return ""
        self.typed += len(edit.text)
        return edit.text

    def _take_back(self, edit: Edit) -> None:
        """A removal is followed where it ends at the tip and lies within what was typed along."""
        end = edit.start + len(edit.removed)
        if edit.text or end != self.tip or edit.start < self.start:
            self.lost = True
        else:
            self.typed -= len(edit.removed)


def is_accepted(piece: str) -> bool:
    """Whether a piece put into a document in one edit was taken from a suggestion, not typed: more than a key, and not
    what an editor adds to a key (the second of a pair, a line's indentation)."""
    return len(piece) > 1 and bool(piece.strip()) and piece not in PAIRS
