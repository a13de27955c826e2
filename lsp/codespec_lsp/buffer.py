"""Store a document's text as lines, convert positions between LSP's encodings, and record edits and deletions."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeVar

Text = TypeVar("Text", str, list[str])
Encoding = Literal["utf-8", "utf-16", "utf-32"]
ROWS = 256  # rows joined at a time
MAX_PLACES = 8  # recorded deletions
MAX_TEXT = 16_384  # characters of one deletion
MAX_TYPED = 200  # maximum characters between the start of a deletion and the cursor
MIN = 4  # minimum non-blank characters of a useful deletion
_HIGH, _LOW = re.compile("[\ud800-\udbff]"), re.compile("[\udc00-\udfff]")
_END = re.compile(r"(\r\n|\n|\r)")
_WORD = re.compile(r"[\w$]*")


@dataclass(frozen=True, slots=True, order=True)
class TextPosition:
    """A position in a text: a row, and a column in code points."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of `removed` with `text` at the offset `start`, in code points of the text before the edit."""

    start: int
    removed: str
    text: str
    row: int = 0

    def least(self) -> Edit:
        """Return the edit without the prefix and suffix that the removed and the inserted text share."""
        removed, text = self.removed, self.text
        same, end = common_ends(removed, text)
        return Edit(self.start + same, removed[same : len(removed) - end], text[same : len(text) - end], self.row)


def common_ends(first: Text, second: Text) -> tuple[int, int]:
    """Return the length of the common prefix of two texts or lists, and of the common suffix after that prefix."""
    same = _common(first, second)
    return same, _common(first[same:][::-1], second[same:][::-1])


def _common(text: Text, other: Text) -> int:
    """Return the length of the common prefix by binary search, because some clients send megabytes per key press."""
    same, end = 0, min(len(text), len(other))
    while same < end:
        middle = (same + end + 1) // 2
        if text[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


@dataclass(slots=True)
class Deletion:
    """Deleted text and its offset in the current text."""

    start: int
    text: str


class Deletions:
    """The last deletions in a document, latest first. Deleted text serves as a draft for text typed in its place."""

    def __init__(self) -> None:
        self._places: list[Deletion] = []

    def edited(self, edit: Edit) -> None:
        """Shift the recorded deletions and add the text that the edit removed. Adjacent deletions are merged."""
        edit = edit.least()
        if edit.removed and self._joins(edit):
            return
        self._move(edit)
        if edit.removed:
            deletion = Deletion(edit.start, edit.removed[:MAX_TEXT])
            self._places = [deletion, *self._places][:MAX_PLACES]

    def find(self, offset: int, before: str, after: str) -> str:
        """Return the longest text deleted at the cursor, without the part that the user typed again, or ""."""
        longest = ""
        for place in self._places:
            typed = offset - place.start
            if not 0 <= typed <= min(MAX_TYPED, len(before)):
                continue
            written = before[len(before) - typed :]
            text = place.text[typed:] if place.text.startswith(written) else place.text
            if len(text) > len(longest) and len("".join(text.split())) >= MIN and not after.startswith(text):
                longest = text
        return longest

    def _joins(self, edit: Edit) -> bool:
        """If an edit removed text next to the latest deletion, merge the edit with that deletion and return True."""
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
        self._places.insert(0, Deletion(edit.start, text[:MAX_TEXT]))
        return True

    def _move(self, edit: Edit) -> None:
        """Shift the deletions after the edit and drop those inside the removed text."""
        end, grown = edit.start + len(edit.removed), len(edit.text) - len(edit.removed)
        self._places = [
            place if place.start <= edit.start else Deletion(place.start + grown, place.text)
            for place in self._places
            if place.start <= edit.start or place.start >= end
        ]


def split_lines(text: str, vim: bool = False) -> list[str]:
    """Split a text after each \\n, \\r\\n or \\r, or if `vim` is set, only after \\n. The last line has no ending."""
    if vim or "\r" not in text:
        *lines, last = text.split("\n")
        return [*(line + "\n" for line in lines), last]
    parts = _END.split(text)
    return [line + end for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True)]


def _vim_line_end(text: str) -> str:
    """Return the line ending that Vim detects: \\r\\n if all lines have it, \\r if the text has no \\n, else \\n."""
    if "\r" not in text:
        return "\n"
    if "\n" not in text:
        return "\r"
    return "\r\n" if text.count("\r\n") == text.count("\n") else "\n"


class Buffer:
    """The text of one document. `encoding` is the unit of the client's columns. `vim` is set for Vim and Neovim."""

    def __init__(self, text: str, encoding: Encoding = "utf-16", vim: bool = False) -> None:
        self.encoding: Encoding = encoding
        self.vim = vim
        self._set(text)

    def _set(self, text: str) -> None:
        self._line_end = _vim_line_end(text) if self.vim else ""
        self._newlines_only = self._line_end.endswith("\n")
        self.lines = split_lines(text, self._newlines_only)

    def whole_lines(self, text: str) -> list[str]:
        """Split a text of whole lines into lines, without the empty line after the last line ending."""
        lines = self.split(text)
        return lines if lines[-1] else lines[:-1]

    def split(self, text: str) -> list[str]:
        """Split a text into lines by the rules of this document's client."""
        return split_lines(text, self._newlines_only)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def newline(self) -> str:
        """The line ending of the document's first line, or \\n if that line has none."""
        first = self.lines[0]
        return self._line_end or first[len(first.rstrip("\r\n")) :] or "\n"

    def position(self, line: int, character: int) -> TextPosition:
        """Convert a client's position to a row and a column. As in LSP, positions outside the text are clamped."""
        if line >= len(self.lines):
            return TextPosition(len(self.lines) - 1, len(self.lines[-1]))
        ends = "\n" if self._newlines_only else "\r\n"
        return TextPosition(line, _column(self.lines[line].rstrip(ends), character, self.encoding))

    def character(self, position: TextPosition) -> int:
        """Return a position's column in the client's units."""
        return width(self.lines[position.row][: position.column], self.encoding)

    def offset(self, position: TextPosition) -> int:
        """Convert a position to an offset in code points."""
        return sum(map(len, self.lines[: position.row])) + position.column

    def at(self, offset: int) -> TextPosition:
        """Return the position at an offset in code points, or the end of the text."""
        ends = list(accumulate(map(len, self.lines)))
        row = min(bisect_right(ends, offset), len(self.lines) - 1)
        start = ends[row - 1] if row else 0
        return TextPosition(row, min(offset - start, len(self.lines[row])))

    def replace(self, start: TextPosition, end: TextPosition, text: str) -> Edit:
        start, end = min(start, end), max(start, end)
        lines, first = self.lines, start.row
        old = "".join(lines[first : end.row + 1])
        tail = len(old) - len(lines[end.row]) + end.column
        edit = Edit(self.offset(start), old[start.column : tail], text, start.row)
        piece = old[: start.column] + text + old[tail:]
        if start.column == 0 and first and lines[first - 1].endswith("\r") and piece.startswith("\n"):
            first -= 1  # an inserted \n and the \r before it form one line ending
            piece = lines[first] + piece
        new = split_lines(piece, self._newlines_only)
        if end.row < len(lines) - 1 and not new[-1]:
            new.pop()
        lines[first : end.row + 1] = new
        return edit

    def change(self, start: tuple[int, int], end: tuple[int, int], text: str) -> Edit:
        """Replace a client's range, which may split surrogate pairs, with a text that may complete a pair."""
        start, end = min(start, end), max(start, end)
        first, last = self.position(*start), self.position(*end)
        if self.encoding == "utf-16":
            if self._is_inside(first, *start):
                text = _halves(self._at(first))[0] + text
            if self._is_inside(last, *end):
                text += _halves(self._at(last))[1]
                last = TextPosition(last.row, last.column + 1)
            before, after = self._at(TextPosition(first.row, first.column - 1)), self._at(last)
            if _HIGH.match(before) and _LOW.match(text or after):
                first, text = TextPosition(first.row, first.column - 1), before + text
            if _LOW.match(after) and _HIGH.match(text[-1:]):
                last, text = TextPosition(last.row, last.column + 1), text + after
            text = _joined(text)
        return self.replace(first, last, text)

    def _is_inside(self, position: TextPosition, line: int, character: int) -> bool:
        """Return whether a client's column is inside the surrogate pair at a position."""
        within = line == position.row and self._at(position) > "\uffff"
        return within and character == self.character(position) + 1

    def _at(self, position: TextPosition) -> str:
        """Return the character at a position, or "" outside the line."""
        return self.lines[position.row][position.column : position.column + 1] if position.column >= 0 else ""

    def replace_all(self, text: str) -> Edit:
        edit = Edit(0, self.text, text)
        self._set(text)
        return edit

    def before(self, position: TextPosition, most: int, step: int) -> str:
        """Return at most `most` characters before a position, from a start that moves in steps of `step` characters."""
        here = self.offset(position)
        if here <= most:
            return "".join(self.lines[: position.row]) + self.lines[position.row][: position.column]
        left = most - (most - here) % step
        row, taken = position.row, position.column
        while row and taken + len(self.lines[row - 1]) <= left:
            row -= 1
            taken += len(self.lines[row])
        text = "".join(self.lines[row : position.row]) + self.lines[position.row][: position.column]
        if taken > left:
            return text[-left:]
        return self.lines[row - 1][-(left - taken) :] + text if row and left - taken > step else text

    def word_start(self, position: TextPosition) -> int:
        """Return the start column of the word that ends at a position."""
        return position.column - len(_WORD.match(self.lines[position.row][: position.column][::-1])[0])  # type: ignore[index]  # it matches any text

    def after(self, position: TextPosition, most: int) -> str:
        """Return at most `most` characters after a position."""
        text = self.lines[position.row][position.column :]
        for row in range(position.row + 1, len(self.lines), ROWS):
            if len(text) >= most:
                break
            text += "".join(self.lines[row : row + ROWS])
        return text[:most]


def _halves(character: str) -> tuple[str, str]:
    """Return the two surrogates of a character above U+FFFF."""
    number = ord(character) - 0x10000
    return chr(0xD800 + (number >> 10)), chr(0xDC00 + (number & 0x3FF))


def _joined(text: str) -> str:
    """Replace each surrogate pair with the character that the pair encodes."""
    if text.isascii() or not _HIGH.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def width(text: str, encoding: Encoding) -> int:
    """Return the length of a text in the client's units. A lone surrogate counts as a character."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def _column(line: str, units: int, encoding: Encoding) -> int:
    """Convert a client's column to code points by binary search. Columns inside a character are rounded down."""
    start, end = 0, min(units, len(line))  # each character has at least one unit
    middle = end
    while start < end:
        taken = width(line[start:middle], encoding)
        if taken <= units:
            start, units = middle, units - taken
        else:
            end = middle - 1
        middle = (start + end + 1) // 2
    return start
