"""A text as an editor keeps it: lines, positions in them, edits. Knows LSP's line ends and its three units of columns;
knows no files and no protocol.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Encoding = Literal["utf-8", "utf-16", "utf-32"]
ROWS = 256  # that are taken at a time
_END = re.compile(r"(\r\n|\n|\r)")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A row, and a column in code points."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Edit:
    """At `start`, an offset in code points of the text before it, `removed` gave way to `text`."""

    start: int
    removed: str
    text: str
    row: int = 0

    def least(self) -> Edit:
        """The same without what begins or ends both texts: what was really typed."""
        removed, text = self.removed, self.text
        same = _common(removed, text)
        removed, text = removed[same:], text[same:]
        end = _common(removed[::-1], text[::-1])
        return Edit(self.start + same, removed[: len(removed) - end], text[: len(text) - end], self.row)


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    if one.startswith(other) or other.startswith(one):
        return min(len(one), len(other))
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def split_lines(text: str) -> list[str]:
    """Lines with their ends; the last one has none, and there is always one. Only \\n, \\r\\n and \\r end a line."""
    if "\r" not in text:
        *lines, last = text.split("\n")
        return [*(line + "\n" for line in lines), last]
    parts = _END.split(text)
    return [line + end for line, end in zip(parts[::2], [*parts[1::2], ""], strict=True)]


class Buffer:
    """The text of one document; `encoding` is the unit of the client's columns."""

    def __init__(self, text: str, encoding: Encoding = "utf-16") -> None:
        self.encoding: Encoding = encoding
        self.lines = split_lines(text)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.lines)

    @property
    def newline(self) -> str:
        """The line end of the first line; \\n where there is none yet."""
        first = self.lines[0]
        return first[len(first.rstrip("\r\n")) :] or "\n"

    def position(self, line: int, character: int) -> Position:
        """A client's position; one behind a line's or the text's end is that end, as LSP has it."""
        if line >= len(self.lines):
            return Position(len(self.lines) - 1, len(self.lines[-1]))
        return Position(line, _column(self.lines[line].rstrip("\r\n"), character, self.encoding))

    def character(self, position: Position) -> int:
        """A position's column in the client's units."""
        return width(self.lines[position.row][: position.column], self.encoding)

    def offset(self, position: Position) -> int:
        """A position as a number of code points from the start."""
        return sum(map(len, self.lines[: position.row])) + position.column

    def replace(self, start: Position, end: Position, text: str) -> Edit:
        """Puts `text` where start … end was."""
        start, end = min(start, end), max(start, end)
        lines, first = self.lines, start.row
        edit = Edit(self.offset(start), self.between(start, end), text, start.row)
        piece = lines[first][: start.column] + text + lines[end.row][end.column :]
        if start.column == 0 and first and lines[first - 1].endswith("\r") and piece.startswith("\n"):
            first -= 1  # a \n that was put behind a \r makes one line end of both
            piece = lines[first] + piece
        new = split_lines(piece)
        if end.row < len(lines) - 1 and not new[-1]:
            new.pop()
        lines[first : end.row + 1] = new
        return edit

    def replace_all(self, text: str) -> Edit:
        """Replaces the whole text."""
        edit = Edit(0, self.text, text)
        self.lines = split_lines(text)
        return edit

    def between(self, start: Position, end: Position) -> str:
        """The text from one position to another."""
        if start.row == end.row:
            return self.lines[start.row][start.column : end.column]
        middle = "".join(self.lines[start.row + 1 : end.row])
        return self.lines[start.row][start.column :] + middle + self.lines[end.row][: end.column]

    def before(self, position: Position, most: int, step: int) -> str:
        """At most `most` characters up to a position, from a line's start, which moves only in steps of `step`."""
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

    def after(self, position: Position, most: int) -> str:
        """At most `most` characters from a position on."""
        text = self.lines[position.row][position.column :]
        for row in range(position.row + 1, len(self.lines), ROWS):
            if len(text) >= most:
                break
            text += "".join(self.lines[row : row + ROWS])
        return text[:most]


def width(text: str, encoding: Encoding) -> int:
    """How long a text is in the client's units; a lone surrogate counts as what it is spelled with."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def _column(line: str, units: int, encoding: Encoding) -> int:
    """The code point at a client's column; a column inside a character is its start. By halves, measured as a whole:
    looking at each character of a long line takes longer than a key may."""
    start, end = 0, min(units, len(line))  # what is left to decide; no character has less than one unit
    middle = end
    while start < end:
        taken = width(line[start:middle], encoding)
        if taken <= units:
            start, units = middle, units - taken
        else:
            end = middle - 1
        middle = (start + end + 1) // 2
    return start
