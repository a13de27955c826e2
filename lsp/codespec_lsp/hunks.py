"""A suggested hunk: what is never shown, and how a hunk stays valid while the text around it changes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from codespec.api.limits import changes_white_space, is_revert
from codespec.exclusions.secret_text import secret_rows
from codespec_lsp.buffer import Buffer, common_ends
from codespec_lsp.edit_history import EditHistory, LineEdit, Lines

MAX_REJECTED = 20
MAX_TYPED = 4096  # characters of a hunk that the user may type
_MARK = re.compile(r"<\|[^|\s]{1,40}\|>|<\[[^\]\s]{1,40}\]>|^(?:<{7}|={7}|>{7})(?: |$)|NO_EDITS", re.MULTILINE)


class Hunk(NamedTuple):
    """A replacement of whole lines: rows [start_row, end_row) of a document, whose text is `old`, become `new`.

    Both texts hold the document's own line ends. An empty `old` inserts before `start_row`.
    """

    start_row: int
    end_row: int
    old: str
    new: str


class Rejected:
    """The hunks that the user dismissed last, with their current rows."""

    def __init__(self) -> None:
        self._hunks: deque[tuple[str, Hunk]] = deque(maxlen=MAX_REJECTED)

    def add(self, uri: str, hunks: Sequence[Hunk]) -> None:
        """Remember dismissed hunks."""
        self._hunks.extend((uri, hunk) for hunk in hunks)

    def edited(self, uri: str, edit: LineEdit) -> None:
        """Move the hunks of a document with an edit, and drop those that it changed."""
        moved = [(each, hunk if each != uri else rebased(hunk, edit)) for each, hunk in self._hunks]
        self._hunks = deque(((each, hunk) for each, hunk in moved if hunk and hunk.old != hunk.new), MAX_REJECTED)

    def __contains__(self, suggestion: tuple[str, Hunk]) -> bool:
        return suggestion in self._hunks


def rebased(hunk: Hunk, edit: LineEdit) -> Hunk | None:
    """Return a hunk after an edit of its document, or None if the edit changed the hunk's lines in another way.

    A hunk stays valid while the user types it: its old text is then partly the new one, and all of it if the hunk was
    applied.
    """
    end, inserts = edit.row + len(edit.old), not edit.old and edit.row == hunk.start_row == hunk.end_row
    if end <= hunk.start_row and not inserts:
        return hunk._replace(start_row=hunk.start_row + edit.grown, end_row=hunk.end_row + edit.grown)
    if edit.row >= hunk.end_row and not inserts:
        return hunk
    if edit.row < hunk.start_row or end > hunk.end_row:
        return None
    at = sum(len(row) + 1 for row in hunk.old.split("\n")[: edit.row - hunk.start_row])
    before = "".join(edit.old)
    now = hunk.old[:at] + "".join(edit.new) + hunk.old[at + len(before) :]
    if not hunk.old.startswith(before, at) or not is_typed_along(hunk.old, hunk.new, now):
        return None
    return Hunk(hunk.start_row, hunk.end_row + edit.grown, now, hunk.new)


def is_typed_along(old: str, new: str, now: str) -> bool:
    """Return whether `now` is a text between `old` and `new`: some of the new text typed, some of the old deleted."""
    start, end = common_ends(old, new)
    removed, written = old[start : len(old) - end], new[start : len(new) - end]
    if len(now) < start + end or now[:start] != old[:start] or now[len(now) - end :] != old[len(old) - end :]:
        return False
    middle = now[start : len(now) - end]
    return len(middle) <= MAX_TYPED and any(
        written.startswith(middle[:typed]) and removed.endswith(middle[typed:]) for typed in range(len(middle) + 1)
    )


def split_hunk(start_row: int, old: Lines, new: Lines) -> list[Hunk]:
    """Return the difference of two texts as hunks, of which each holds changed lines alone."""
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        Hunk(start_row + first, start_row + last, "".join(old[first:last]), "".join(new[start:end]))
        for tag, first, last, start, end in codes
        if tag != "equal"
    ]


def why_hidden(hunk: Hunk, uri: str, buffer: Buffer, history: EditHistory, rejected: Rejected) -> str:
    """Return one sentence that explains why a hunk is never shown, or ""."""
    if not 0 <= hunk.start_row <= hunk.end_row <= len(buffer.lines):
        return "The edit lies outside the document."
    old, new = buffer.whole_lines(hunk.old), buffer.whole_lines(hunk.new)
    if buffer.lines[hunk.start_row : hunk.end_row] != old:
        return "The edit belongs to an earlier text."
    if changes_white_space(old, new):
        return "The edit changes nothing but blank lines and white space at line ends."
    if (uri, hunk) in rejected:
        return "The edit was dismissed before."
    if _MARK.search(hunk.new) and not _MARK.search(hunk.old):
        return "The edit holds a model's marks."
    if secret_rows(hunk.new) or secret_rows(hunk.old):
        return "The edit touches a secret."
    if is_revert(hunk.start_row, old, new, history.states(uri)):
        return "The edit takes back what was just changed."
    return ""
