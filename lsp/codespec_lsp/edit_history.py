"""The last changes of a workspace, from which the next one is predicted.

Edits that are close in time and place are merged, so that a change is what the user would call one. Rows are those of
the documents' current texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from codespec_lsp.buffer import Edit, common_ends
from codespec_lsp.documents import Document

MAX_CHANGES = 6
MAX_AGE = 300.0  # seconds
MERGE_WITHIN = 1.0  # seconds between two edits of one change
MERGE_ROWS = 8  # rows between them
SAME_PLACE_WITHIN = 10.0  # seconds between two edits of the same lines
MAX_ROWS = 64  # rows of a change; a longer one (a formatter, a checkout) is none of the user's keys
MAX_LINE = 1000  # characters of a line: longer ones are data
AROUND_ROWS, MAX_AROUND = 200, 32_768  # kept around a change on each side; characters of it
MAX_STATES = 32  # texts that one change passed through
BULK_WITHIN, BULK_CHARACTERS, BULK_ROWS = 1.5, 200, 8  # more than that at once is pasted or generated, not typed

Lines = list[str]


@dataclass(frozen=True, slots=True)
class LineEdit:
    """An edit in whole lines: from `row` on, the lines `old` became `new`."""

    row: int
    old: Lines
    new: Lines

    @property
    def grown(self) -> int:
        """The number of rows by which the text after the edit moved."""
        return len(self.new) - len(self.old)

    def moved(self, row: int) -> int:
        """Return the row after the edit of a row before it."""
        return row + self.grown if row >= self.row + len(self.old) else row


def line_edit(document: Document, edit: Edit) -> LineEdit | None:
    """Return an edit of a document, already applied, in whole lines, or None if it changed nothing."""
    edit, buffer, lines = edit.least(), document.buffer, document.buffer.lines
    if not edit.removed and not edit.text:
        return None
    start, end = buffer.at(edit.start), buffer.at(edit.start + len(edit.text))
    new = lines[start.row : end.row + 1]
    old = buffer.split(lines[start.row][: start.column] + edit.removed + lines[end.row][end.column :])
    if not old[-1] and end.row < len(lines) - 1:
        old.pop()
    first, last = common_ends(old, new)
    return LineEdit(start.row + first, old[first : len(old) - last], new[first : len(new) - last])


@dataclass(eq=False, slots=True)
class Change:
    """One change of a document by the user, merged from the edits that made it. The last ones may still grow.

    The lines `old` became `new`; the first is `row` of the text before the change and after it. `language` is a
    grammar's name or "". `time` is the session's clock, in seconds, at the last of the edits. `before` and `after` are
    the document's text before and after the change, bounded around it. `predicted` is set if it was an accepted
    suggestion. `states` are the earlier texts of its lines.
    """

    uri: str
    path: str
    language: str
    row: int
    old: Lines
    new: Lines
    time: float = 0.0
    before: str = ""
    after: str = ""
    predicted: bool = False
    states: deque[Lines] = field(default_factory=lambda: deque(maxlen=MAX_STATES))

    @property
    def end(self) -> int:
        """The row after the changed lines."""
        return self.row + len(self.new)

    @property
    def is_blank(self) -> bool:
        """Whether only white space has changed."""
        return "".join("".join(self.old).split()) == "".join("".join(self.new).split())

    def undoes(self, other: Change) -> bool:
        """Return whether this change takes back another one."""
        same_place = (self.uri, self.row) == (other.uri, other.row)
        return same_place and (self.old, self.new) == (other.new, other.old)


class EditHistory:
    """The changes in all documents of one client. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changes: list[Change] = []
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=256)
        self.undone = False  # whether the last edit brought back an earlier text
        self.edited_at = float("-inf")
        self.number = 0  # of edits so far

    def edited(self, document: Document, edit: LineEdit, *, predicted: bool = False) -> None:
        """Record an edit, already applied. It is `predicted` if it was suggested; then it is a change of its own."""
        now = self.edited_at = self._clock()
        self.number += 1
        self.undone = False
        if not predicted:
            characters = abs(sum(map(len, edit.new)) - sum(map(len, edit.old)))
            self._recent.append((now, characters, max(len(edit.old), len(edit.new)) - 1))
        last = self._changes[-1] if self._changes else None
        joins = last is not None and not predicted and self._joins(last, document, edit, now)
        for each in self._changes:
            if each.uri == document.uri and not (each is last and joins):
                each.row = edit.moved(each.row)
        self._changes = [each for each in self._changes if now - each.time <= MAX_AGE]
        if max(len(edit.old), len(edit.new)) > MAX_ROWS or any(len(line) > MAX_LINE for line in edit.old + edit.new):
            self.forget(document)
        elif last is not None and joins:
            self._merge(last, document, edit, now)
        else:
            texts = (_around(document, edit, undo=True), _around(document, edit))
            of = (document.uri, document.path, document.language)
            self._changes.append(Change(*of, edit.row, edit.old, edit.new, now, *texts, predicted))
        self._cancel_inverse()
        del self._changes[:-MAX_CHANGES]

    def changes(self) -> list[Change]:
        """Return the changes, the oldest first, without those of white space alone."""
        old = self._clock() - MAX_AGE
        return [each for each in self._changes if each.time >= old and not each.is_blank]

    def states(self, uri: str) -> list[tuple[int, Lines, Lines]]:
        """Return the earlier texts of changed lines: each with its first row and the lines that are there now."""
        return [
            (each.row, each.new, state)
            for each in self._changes
            if each.uri == uri
            for state in (each.old, *each.states)
            if state != each.new
        ]

    @property
    def is_bulk(self) -> bool:
        """Whether more was changed just now than anyone types."""
        since = self._clock() - BULK_WITHIN
        recent = [each for each in self._recent if each[0] >= since]
        return sum(each[1] for each in recent) > BULK_CHARACTERS or sum(each[2] for each in recent) > BULK_ROWS

    def forget(self, document: Document) -> None:
        """Drop the changes of a document, as after its text was lost."""
        self._changes = [each for each in self._changes if each.uri != document.uri]

    @staticmethod
    def _joins(change: Change, document: Document, edit: LineEdit, now: float) -> bool:
        """Return whether an edit continues a change."""
        if change.uri != document.uri or change.predicted:
            return False
        first, last = edit.row, edit.row + len(edit.old)
        apart = max(first - change.end, change.row - last, 0)
        if max(last, change.end) - min(first, change.row) > MAX_ROWS:
            return False
        if now - change.time < MERGE_WITHIN:
            return apart <= MERGE_ROWS
        return first < change.end and change.row < last and now - change.time < SAME_PLACE_WITHIN

    def _merge(self, change: Change, document: Document, edit: LineEdit, now: float) -> None:
        """Extend a change by an edit. Lines between both are part of it."""
        change.states.append(change.new)
        first = min(change.row, edit.row)
        last = max(edit.moved(change.end), edit.row + len(edit.new))
        new = document.buffer.lines[first:last]
        at = edit.row - first
        between = new[:at] + edit.old + new[at + len(edit.new) :]  # before this edit
        at = change.row - first
        above, below = between[:at], between[at + len(change.new) :]
        old = above + change.old + below
        jumped = max(abs(len("".join(edit.old)) - len("".join(edit.new))), abs(edit.grown)) > 1
        if (first, len(between)) == (change.row, len(change.new)):
            self.undone = jumped and new in (change.old, *change.states)
        else:
            change.states = deque((above + state + below for state in change.states), maxlen=MAX_STATES)
        change.row, change.old, change.new, change.time = first, old, new, now
        change.after = _around(document, edit)

    def _cancel_inverse(self) -> None:
        last = self._changes[-1] if self._changes else None
        if last is None:
            return
        inverse = next((each for each in self._changes[:-1] if last.undoes(each)), None)
        if last.old == last.new or inverse is not None:
            self.undone = True
            self._changes = [each for each in self._changes if each not in (last, inverse)]


def _around(document: Document, edit: LineEdit, *, undo: bool = False) -> str:
    """Return the text around an edit; with `undo`, as it was before the edit."""
    lines, end = document.buffer.lines, edit.row + len(edit.new)
    for rows in (AROUND_ROWS, AROUND_ROWS // 8, 0):
        above, below = lines[max(0, edit.row - rows) : edit.row], lines[end : end + rows]
        text = "".join(above + (edit.old if undo else edit.new) + below)
        if len(text) <= MAX_AROUND:
            return text
    return ""
