"""Record the user's recent changes in whole lines, for predicting the next edit, and convert suggested hunks.

Edits that are close in time and place form one change. Row numbers refer to the documents' current texts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from codespec.api.limits import changes_white_space, is_revert
from codespec.exclusions.secrets import secret_rows
from codespec_lsp.buffer import Buffer, Edit, TextPosition, common_ends, width

if TYPE_CHECKING:
    from codespec_lsp.documents import Document

MAX_CHANGES = 6
MAX_CHANGE_AGE_S = 300.0  # seconds
MERGE_WINDOW_S = 1.0  # seconds between two edits of one change
MERGE_ROWS = 8  # rows between two edits of one change
SAME_PLACE_WINDOW_S = 10.0  # seconds between two edits of the same lines
MAX_ROWS = 64  # rows of a change; longer ones come from a formatter or a checkout
MAX_LINE = 1000  # characters of a line; longer lines are data
AROUND_ROWS, MAX_AROUND = 200, 32_768  # rows stored on each side of a change; maximum characters
MAX_STATES = 32  # earlier texts of one change
BULK_WINDOW_S, BULK_CHARACTERS, BULK_ROWS = 1.5, 200, 8  # seconds; more text within them is pasted, not typed
MAX_TYPED = 4096  # characters of a hunk that is being typed
_MARK = re.compile(r"<\|[^|\s]{1,40}\|>|<\[[^\]\s]{1,40}\]>|^(?:<{7}|={7}|>{7})(?: |$)|NO_EDITS", re.MULTILINE)
Lines = list[str]


@dataclass(frozen=True, slots=True)
class LineEdit:
    """An edit in whole lines: the lines `old`, which started at `row`, were replaced by the lines `new`."""

    row: int
    old: Lines
    new: Lines

    @property
    def grown(self) -> int:
        """The number of rows by which the edit moved the text below it."""
        return len(self.new) - len(self.old)

    def moved(self, row: int) -> int:
        """Convert a row number before the edit to the row number after the edit."""
        return row + self.grown if row >= self.row + len(self.old) else row


def line_edit(document: Document, edit: Edit) -> LineEdit | None:
    """Convert an applied edit of a document to an edit in whole lines. Return None if the text is unchanged."""
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
    """A user's change, merged from one or more edits: the lines `old`, starting at `row`, were replaced by `new`.

    `language` is a grammar's name or "". `time` is the event loop's time of the last edit. `before` and `after`
    are the old and the new lines with the text around them. `predicted` marks an accepted suggestion. `states` lists
    the intermediate texts between `old` and `new`.
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


class EditHistory:
    """The changes in all documents of one client. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changes: list[Change] = []
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=256)
        self.undone = False  # whether the last edit restored an earlier text
        self.edited_at = float("-inf")  # event loop's time of the last edit
        self.number = 0  # number of edits so far

    def edited(self, document: Document, edit: LineEdit, *, predicted: bool = False) -> None:
        """Record an edit of a document. An accepted suggestion (`predicted`) is never merged with other edits."""
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
        self._changes = [each for each in self._changes if now - each.time <= MAX_CHANGE_AGE_S]
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
        """Return the recent changes, oldest first, except those that change only white space."""
        old = self._clock() - MAX_CHANGE_AGE_S
        return [
            each
            for each in self._changes
            if each.time >= old and "".join("".join(each.old).split()) != "".join("".join(each.new).split())
        ]

    def states(self, uri: str) -> list[tuple[int, Lines, Lines]]:
        """Return the earlier texts of changed lines as tuples (first row, current lines, earlier lines)."""
        return [
            (each.row, each.new, state)
            for each in self._changes
            if each.uri == uri
            for state in (each.old, *each.states)
            if state != each.new
        ]

    @property
    def is_bulk(self) -> bool:
        """Whether the edits of the last BULK_WINDOW_S changed more text than a user can type in that time."""
        since = self._clock() - BULK_WINDOW_S
        recent = [each for each in self._recent if each[0] >= since]
        return sum(each[1] for each in recent) > BULK_CHARACTERS or sum(each[2] for each in recent) > BULK_ROWS

    def forget(self, document: Document) -> None:
        self._changes = [each for each in self._changes if each.uri != document.uri]

    @staticmethod
    def _joins(change: Change, document: Document, edit: LineEdit, now: float) -> bool:
        if change.uri != document.uri or change.predicted:
            return False
        first, last = edit.row, edit.row + len(edit.old)
        apart = max(first - change.end, change.row - last, 0)
        if max(last, change.end) - min(first, change.row) > MAX_ROWS:
            return False
        if now - change.time < MERGE_WINDOW_S:
            return apart <= MERGE_ROWS
        return first < change.end and change.row < last and now - change.time < SAME_PLACE_WINDOW_S

    def _merge(self, change: Change, document: Document, edit: LineEdit, now: float) -> None:
        """Extend a change by an edit and by the lines between the change and the edit."""
        change.states.append(change.new)
        first = min(change.row, edit.row)
        last = max(edit.moved(change.end), edit.row + len(edit.new))
        new = document.buffer.lines[first:last]
        at = edit.row - first
        between = new[:at] + edit.old + new[at + len(edit.new) :]  # the lines before this edit
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
        undone = (last.uri, last.row, last.new, last.old)
        inverse = next((each for each in self._changes if (each.uri, each.row, each.old, each.new) == undone), None)
        if last.old == last.new or inverse is not None:
            self.undone = True
            self._changes = [each for each in self._changes if each not in (last, inverse)]


def _around(document: Document, edit: LineEdit, *, undo: bool = False) -> str:
    """Return an edit's lines and the lines around them, before the edit if `undo`, or "" if longer than MAX_AROUND."""
    lines, end = document.buffer.lines, edit.row + len(edit.new)
    for rows in (AROUND_ROWS, AROUND_ROWS // 8, 0):
        above, below = lines[max(0, edit.row - rows) : edit.row], lines[end : end + rows]
        text = "".join(above + (edit.old if undo else edit.new) + below)
        if len(text) <= MAX_AROUND:
            return text
    return ""


class Hunk(NamedTuple):
    """A replacement of `old`, the document's rows [start_row, end_row), with `new`. Both texts have line endings."""

    start_row: int
    end_row: int
    old: str
    new: str


def rebased(hunk: Hunk, edit: LineEdit) -> Hunk | None:
    """Return a hunk adjusted to an edit, which may type a part of `new`, or None if the edit contradicts the hunk."""
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
    """Return whether `now` can occur while the user changes `old` to `new` by typing and deleting."""
    start, end = common_ends(old, new)
    removed, written = old[start : len(old) - end], new[start : len(new) - end]
    if len(now) < start + end or now[:start] != old[:start] or now[len(now) - end :] != old[len(old) - end :]:
        return False
    middle = now[start : len(now) - end]
    return len(middle) <= MAX_TYPED and any(
        written.startswith(middle[:typed]) and removed.endswith(middle[typed:]) for typed in range(len(middle) + 1)
    )


def split_hunk(start_row: int, old: Lines, new: Lines) -> list[Hunk]:
    """Return the differences between two texts as hunks that contain no unchanged lines."""
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        Hunk(start_row + first, start_row + last, "".join(old[first:last]), "".join(new[start:end]))
        for tag, first, last, start, end in codes
        if tag != "equal"
    ]


def why_hidden(hunk: Hunk, uri: str, buffer: Buffer, history: EditHistory, rejected: Collection[Hunk]) -> str:
    """Return one sentence that says why a hunk is never shown, or ""."""
    if not 0 <= hunk.start_row <= hunk.end_row <= len(buffer.lines):
        return "The edit is outside the document."
    old, new = buffer.whole_lines(hunk.old), buffer.whole_lines(hunk.new)
    if buffer.lines[hunk.start_row : hunk.end_row] != old:
        return "The edit is for an earlier text."
    if changes_white_space(old, new):
        return "The edit changes only blank lines and white space at line ends."
    if hunk in rejected:
        return "The edit was dismissed before."
    if _MARK.search(hunk.new) and not _MARK.search(hunk.old):
        return "The edit contains a model's control marks."
    if secret_rows(hunk.new) or secret_rows(hunk.old):
        return "The edit touches a secret."
    if is_revert(hunk.start_row, old, new, history.states(uri)):
        return "The edit reverts a recent change."
    return ""


def as_whole_lines(hunk: Hunk, buffer: Buffer) -> dict[str, Any]:
    """Return a hunk as JSON, with a range of whole lines in the client's units."""
    newline = "\n" if buffer.vim else buffer.newline
    old, new = hunk.old, hunk.new.replace("\r\n", "\n").replace("\n", newline)
    start, end = (hunk.start_row, 0), (hunk.end_row, 0)
    last = len(buffer.lines) - 1
    if hunk.end_row > last:
        end = (last, width(buffer.lines[last], buffer.encoding))
        if hunk.start_row > last:
            start, old, new = end, newline + old, newline + new
        if buffer.lines[last]:
            new = new.removesuffix(newline)
    return {"range": {"start": _position(*start), "end": _position(*end)}, "newText": new, "oldText": old}


def without_kept_words(shown: Mapping[str, Any], buffer: Buffer) -> dict[str, Any]:
    """Remove the unchanged words at both ends of a hunk, unless the hunk only inserts or deletes lines."""
    old, new, row = shown["oldText"], shown["newText"], shown["range"]["start"]["line"]
    if not old or not new:
        return {"range": shown["range"], "text": new}
    same, tail = common_ends(old, new)
    same = min(same, len(old.splitlines()[0]))
    while same and _is_word(old[same - 1]):
        same -= 1
    while tail and _is_word(old[len(old) - tail]):
        tail -= 1
    kept = old[: len(old) - tail]
    end = TextPosition(row + kept.count("\n"), len(kept) - (kept.rfind("\n") + 1))
    start = _position(row, buffer.character(TextPosition(row, same)))
    edges = {"start": start, "end": _position(end.row, buffer.character(end))}
    return {"range": edges, "text": new[same : len(new) - tail]}


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _position(line: int, character: int) -> dict[str, int]:
    return {"line": line, "character": character}
