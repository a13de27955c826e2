"""Read an answer that rewrites a window: its hunks, each as soon as the answer agrees with the old lines again.

Together, the hunks turn the window into the answer. Whole lines are compared. After a difference, the texts agree again
at two equal lines with letters or at three equal lines, because brackets and blank lines occur everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SURE_LINES, SURE_WITH_LETTERS = 3, 2  # equal lines after which a difference is over


@dataclass(frozen=True, slots=True)
class LineHunk:
    """Lines that replace the window's lines from `start` up to `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The old lines, of which the prompt already gives the first `given` as the beginning of the answer.

    `marks` are texts that an answer may repeat at the cursor, and that are no part of the code. `after` are the lines
    after the old ones, which an answer may go on with. With `keeps_end`, an answer that ends before the old lines do
    leaves the rest of them, and adds lines after them only at the document's end.
    """

    lines: tuple[str, ...] = ()
    given: int = 0
    marks: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    keeps_end: bool = False

    @property
    def ends(self) -> bool:
        """Whether the document ends with the window."""
        return not any(map(str.strip, self.after))


class AnswerReader:
    """Compares a growing answer with the old lines.

    It `is_over` at the end of the window if no lines may be added there; what follows is ignored.
    """

    def __init__(self, window: Window) -> None:
        self.window, self.old = window, list(window.lines)
        self._new = list[str]()
        self._rest = ""  # the last line, which may go on
        self._at_old = self._at_new = 0  # the texts before these lines are compared
        self._differs = False
        for line in self.old[: window.given]:
            self._add(line)

    def feed(self, text: str) -> list[LineHunk]:
        """Read a piece of the answer and return the hunks that it completes."""
        *whole, self._rest = (self._rest + text).split("\n")
        return [hunk for line in whole if not self.is_over and (hunk := self._add(line)) is not None]

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows can change the hunks."""
        return self._at_old == len(self.old) and self.window.keeps_end and not self.window.ends

    def finish(self) -> list[LineHunk]:
        """Read the end of a whole answer and return the hunks that it completes.

        Blank lines at the end stay those of the window, because models add and drop them at random. Lines that stand
        after the window are no part of it. An answer without any text changes nothing.
        """
        found = self.feed("\n") if self._rest else []
        if not any(map(str.strip, self._new)):
            return []
        old, new = _without_blank_end(self.old[self._at_old :]), _without_blank_end(self._new[self._at_new :])
        if not common_end(old, new):
            new = new[: len(new) - _beyond(new, self.window.after)]
        same = common_end(old, new)
        rest, written = old[: len(old) - same], new[: len(new) - same]
        end, adds = len(rest), bool(old) or self.window.ends
        if self.window.keeps_end and not (adds and same and any(map(has_letters, rest))):
            # A model that was not trained for edits ends too early: the lines that it did not reach stay.
            end, written = (_replaced(rest, written), written) if adds else (0, [])
        hunk = self._hunk(self._at_old + end, self._at_new + len(written))
        return [*found, hunk] if hunk is not None else found

    def _add(self, line: str) -> LineHunk | None:
        for mark in self.window.marks:
            line = line.replace(mark, "")
        self._new.append(line)
        if not self._differs and self.old[self._at_old : self._at_old + 1] == [line]:
            self._at_old, self._at_new = self._at_old + 1, self._at_new + 1
            return None
        self._differs = True
        return self._agree_again()

    def _agree_again(self) -> LineHunk | None:
        """Return the hunk that the last lines of the answer end, if they are enough to find them in the old ones."""
        for size in (SURE_WITH_LETTERS, SURE_LINES):
            tail = self._new[max(self._at_new, len(self._new) - size) :]
            if len(tail) < size or (size < SURE_LINES and not all(map(has_letters, tail))):
                continue
            places = range(self._at_old, len(self.old) - size + 1)
            place = next((place for place in places if self.old[place : place + size] == tail), None)
            if place is not None:
                same = common_end(self.old[self._at_old : place], self._new[self._at_new : -size])
                hunk = self._hunk(place - same, len(self._new) - size - same)
                self._at_old, self._at_new, self._differs = place + size, len(self._new), False
                return hunk
        return None

    def _hunk(self, end: int, new_end: int) -> LineHunk | None:
        """Return the hunk up to these lines, or None if nothing differs."""
        lines = tuple(self._new[self._at_new : new_end])
        return LineHunk(self._at_old, end, lines) if lines or end > self._at_old else None


def common_end(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many lines at the end are equal."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _without_blank_end(lines: list[str]) -> list[str]:
    return lines[: max((n for n, line in enumerate(lines, 1) if line.strip()), default=0)]


def _beyond(new: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines at the end of an answer are the first ones after the window.

    Brackets alone are not enough after other new lines, since these may need them.
    """
    for count in range(min(len(new), len(after)), 0, -1):
        tail = list(new[-count:])
        if tail == list(after[:count]) and (count == len(new) or any(map(has_letters, tail))):
            return count
    return 0


def _replaced(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many of the last old lines the new ones replace: code replaces code, and a bracket a line with it."""
    count = 0
    for line in new:
        bracket = old[count].strip() if count < len(old) else ""
        count += count < len(old) and (has_letters(bracket) == has_letters(line) or (bracket != "" and bracket in line))
    return count


def has_letters(line: str) -> bool:
    """Return whether a line holds a letter."""
    return any(map(str.isalpha, line))
