"""Cut a completion at stop strings, control tokens, repetitions and likely mistakes.

Each filter follows a growing text and reads each byte once. Bytes appended after a cut never move the cut. Filters do
not change the text before the cut. The likely mistakes are a second docstring and an assignment in a condition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codespec_grammars import Cut, Surroundings

LONGEST_PERIOD, MIN_LOOP = 96, 48  # most bytes of a unit repeated within a line; fewest of all its repetitions
LONG_UNIT = 16  # bytes of a unit that may occur twice; a shorter unit may occur three times
MAX_LINES = 8  # lines of a repeated block
_NEEDED = {1: 2, 2: 4}  # by the number of lines in a block: repeated lines that make a loop (others: one block)
MAX_BELOW, MIN_WORDS = 40, 4  # non-blank lines below the cursor that are compared; fewest words of such a statement
_WORDS = re.compile(rb"[\w\x80-\xff]+")
_NO_STATEMENTS = (b"#", b"//", b"/*", b"*", b"@")
LONGEST_BLANK = 64  # consecutive bytes of white space in a line; code rarely has more
MAX_CONDITION = 400  # bytes of a line up to an assignment
_QUOTES = (b'"""', b"'''")
_DOCSTRING = re.compile(rb"[ \t]*[rRuU]?(\"\"\"|''')")
_MAY_BE_DOCSTRING = re.compile(rb"[ \t]*[rRuU]?(?:\"{0,2}|'{0,2})$")
_STRING = re.compile(rb"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\\n])*`")
_PAIR = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_NESTED = 4  # maximum depth of brackets
_OF_OPERATORS = tuple(bytes([byte]) for byte in b"=!<>:+-*/%&|^~?.")  # bytes before a `=` that make it another operator
_HEAD = re.compile(rb"\b(?:if|elif|elsif|elseif|while|assert)\b")


class StopFinder:
    """Finder of stop strings in a growing text; the result does not depend on the sizes of the appended chunks."""

    def __init__(self, stops: tuple[bytes, ...] = ()) -> None:
        self.stops = stops

    def find(self, text: bytes | bytearray, start: int = 0) -> int | None:
        """Return the offset at which to cut the text, or None if no stop string ends at or after `start`.

        If several stop strings match, the one that ends first is used, and of those that end at the same byte the
        longest.
        """
        matches: list[tuple[int, int]] = []
        for stop in self.stops:
            place = text.find(stop, max(0, start - len(stop) + 1))
            if place >= 0:
                matches.append((place + len(stop), place))
        return min(matches)[1] if matches else None

    def held_back(self, text: bytes | bytearray) -> int:
        """Return the number of trailing bytes that may be the beginning of a stop string."""
        return max((self._begun(text, stop) for stop in self.stops), default=0)

    @staticmethod
    def _begun(text: bytes | bytearray, stop: bytes) -> int:
        place = text.find(stop[:1], max(0, len(text) - len(stop) + 1))
        while place >= 0 and not stop.startswith(bytes(text[place:])):
            place = text.find(stop[:1], place + 1)
        return len(text) - place if place >= 0 else 0


class Filter:
    """A filter of one text."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.certain = 0  # number of bytes that no later byte can remove
        self.read = 0  # number of bytes already processed

    def advance(self, text: bytearray) -> None:
        """Process the bytes appended to the text since the last call; bytes after a cut have no effect."""
        if self.cut is None:
            self._look(text)
            self.read = len(text)

    def finish(self, text: bytearray) -> None:
        """Mark the text as complete."""

    def _look(self, text: bytearray) -> None:
        raise NotImplementedError

    def _end(self, seen: int, keep: int, reason: str) -> None:
        self.cut, self.certain = Cut(seen, keep, reason), keep


class Markers(Filter):
    """Cut the text before a control token that the model wrote as text."""

    def __init__(self, markers: tuple[bytes, ...]) -> None:
        super().__init__()
        self._markers = StopFinder(markers)

    def _look(self, text: bytearray) -> None:
        keep = self._markers.find(text, self.read)
        if keep is None:
            self.certain = len(text) - self._markers.held_back(text)
            return
        seen = min(text.index(mark, keep) + len(mark) for mark in self._markers.stops if text.find(mark, keep) >= 0)
        self._end(seen, keep, "the model wrote a control token as text")


class Lines(Filter):
    """A filter that decides line by line; `line` is the text before the cursor on the cursor's line."""

    def __init__(self, line: bytes = b"") -> None:
        super().__init__()
        self._line = line
        self._start = 0  # start of the last line of the text

    def _look(self, text: bytearray) -> None:
        while self.cut is None and (end := text.find(b"\n", max(self._start, self.read))) >= 0:
            self._add(text, self._last(text, end), end)
            self._start = end + 1
        if self.cut is None:
            self.certain = self._sure(text, self._last(text, len(text)))

    def _last(self, text: bytearray, end: int) -> bytes:
        return (b"" if self._start else self._line) + text[self._start : end]

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        """Process a whole line, whose line break is at byte `end` of the text."""
        raise NotImplementedError

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        """Return how many leading bytes of the text no later byte can remove; `unfinished` is the last line."""
        return len(text.rstrip())


class RepeatedLine(Lines):
    """Cut the text above a line that equals one of the lines `below`, which follow the cursor."""

    def __init__(self, line: bytes, below: Sequence[bytes]) -> None:
        super().__init__(line)
        self._below = frozenset(below)

    def finish(self, text: bytearray) -> None:
        """Check the last line, which is complete because the text has ended."""
        if self.cut is None and self._last(text, len(text)).rstrip() in self._below:
            self._found(text, len(text))

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        if line.rstrip() in self._below:
            self._found(text, end + 1)

    def _found(self, text: bytearray, seen: int) -> None:
        self._end(seen, len(text[: self._start].rstrip()), "the next line repeats a line below")

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        begun = unfinished.rstrip()
        repeats = any(line.startswith(begun) for line in self._below)
        return len((text[: self._start] if repeats else text).rstrip())


def lines_below(after: bytes) -> list[bytes]:
    """Return the lines below the cursor that a completion may not repeat; `after` is the text after the cursor.

    The result contains the next non-blank line, and those statements of at least MIN_WORDS words among the next
    MAX_BELOW lines that are in the cursor's block or in an outer block. Shorter statements, comments and decorators are
    not included, because ordinary code repeats them.
    """
    found, least = list[bytes](), 1 << 30
    for line in [line.rstrip() for line in after.split(b"\n")[1:] if line.strip()][:MAX_BELOW]:
        first, indent = least == 1 << 30, len(line) - len(line.lstrip())
        statement = len(_WORDS.findall(line)) >= MIN_WORDS and not line.lstrip().startswith(_NO_STATEMENTS)
        if (first and len(line.strip()) >= 2 and has_word(line)) or (statement and indent <= least):
            found.append(line)
        least = min(least, indent)
    return found


class MostLines(Lines):
    """Cut the text after `most` non-blank lines."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        self._left -= bool(line.strip())
        if not self._left:
            self._end(end + 1, len(text[:end].rstrip()), "it is long enough")


class LineLoop(Lines):
    """Cut the text after the first of several equal blocks: three blocks of one or two lines, or two longer blocks."""

    def __init__(self, line: bytes = b"") -> None:
        super().__init__(line)
        self._lines: list[tuple[int, bytes]] = []  # end and bytes of each whole non-blank line
        self._runs = [0] * (MAX_LINES + 1)  # by lag: the number of last lines that equal the line `lag` lines above

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        if not line.strip():
            return
        lines, runs, index = self._lines, self._runs, len(self._lines)
        lines.append((max(0, end - line.endswith(b"\r")), line.removesuffix(b"\r")))
        for lag in range(1, MAX_LINES + 1):
            runs[lag] = runs[lag] + 1 if index >= lag and lines[index - lag][1] == lines[index][1] else 0
            if runs[lag] >= _NEEDED.get(lag, lag) and any(has_word(content) for _, content in lines[index - lag + 1 :]):
                self._end(end + 1, lines[index - runs[lag]][0], "it repeats itself")
                return

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        """Return the length of the text without the last lines that may turn out to repeat earlier lines."""
        certain, shown = len(text.rstrip()), unfinished.removesuffix(b"\r") if unfinished.strip() else None
        for lag in range(1, min(MAX_LINES, len(self._lines)) + 1):
            goes_on = self._runs[lag] if shown is None else self._lines[-lag][1].startswith(shown)
            if goes_on:
                certain = min(certain, self._lines[-self._runs[lag] - 1][0])
        return certain


class ByteLoop(Filter):
    """Cut the text after the second occurrence of a short string that is repeated many times within a line."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_line(0)

    def _begin_line(self, start: int) -> None:
        self._start, self._word = start, -1
        self._runs = dict[int, int]()  # by lag: the number of last bytes that equal the byte `lag` bytes before

    def _look(self, text: bytearray) -> None:
        for index in range(self.read, len(text)):
            if text[index] == 0x0A:
                self._begin_line(index + 1)
            elif self._loops(text, index):
                return
        last = len(text) - 1
        held = (size - lag for lag, size in self._runs.items() if last - self._word < lag < size)
        self.certain = len(text) - max(held, default=0)

    def _loops(self, text: bytearray, index: int) -> bool:
        before, self._runs = self._runs, {}
        self._word = index if has_word(text[index : index + 1]) else self._word
        first = max(self._start, index - LONGEST_PERIOD)
        place = text.rfind(text[index], first, index)
        while place >= 0:
            lag = index - place
            run = self._runs[lag] = before.get(lag, 0) + 1
            needed = (2 if lag >= LONG_UNIT else 3) * lag
            if self._word > place and run >= needed and run + lag >= MIN_LOOP:
                self._end(index + 1, index + 1 - run + lag, "it repeats itself")
                return True
            place = text.rfind(text[index], first, place)
        return False


class BlankRun(Filter):
    """Cut the text before a very long run of white space within a line, where a model has lost the indentation."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = 0  # end of the last byte other than space or tab

    def _look(self, text: bytearray) -> None:
        for index in range(self.read, len(text)):
            if text[index] not in b" \t":
                self._shown = index + 1
            elif index - self._shown >= LONGEST_BLANK:
                self._end(index + 1, len(text[: self._shown].rstrip()), "only white space follows")
                return
        self.certain = len(text.rstrip())


def has_word(text: bytes | bytearray) -> bool:
    """Return whether the text contains a letter, a digit or a byte of a non-ASCII character."""
    return any(byte >= 0x80 or chr(byte).isalnum() for byte in text)


class SecondDocstring(Lines):
    """Cut the text above a docstring if the block already has one, above or below the new docstring."""

    def __init__(self, place: Surroundings) -> None:
        super().__init__(place.line)
        entry = place.state.stack[-1][0] if place.state.stack else None
        self._inside = entry.close if entry is not None and entry.close in _QUOTES else b""
        own = place.opened and _DOCSTRING.match(place.below) is not None
        self._after = own or _ends_docstring(place.before[: len(place.before) - len(place.line)])
        self._head = place.line.strip()

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        if self._found(text, line):
            return
        whole, begun = line.strip(), _DOCSTRING.match(line)
        if self._inside:
            if self._inside in line:
                self._after, self._inside = whole.endswith(self._inside), b""
        elif begun is not None:
            rest = whole[whole.index(begun[1]) + 3 :]
            self._after = rest.endswith(begun[1])
            self._inside = b"" if begun[1] in rest else begun[1]
        elif whole and (self._start or whole != self._head):
            self._after = False

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        if self._found(text, unfinished):
            return self.certain
        held = self._after and not self._inside and _MAY_BE_DOCSTRING.match(unfinished)
        return len((text[: self._start] if held else text).rstrip())

    def _found(self, text: bytearray, line: bytes) -> bool:
        """Cut the text above a line that begins a second docstring, unless the opening quotes are before the cursor."""
        begun = _DOCSTRING.match(line) if self._after and not self._inside else None
        seen = begun.end() + self._start - (0 if self._start else len(self._line)) if begun else 0
        if seen > 0:
            self._end(seen, len(text[: self._start].rstrip()), "there is a docstring already")
        return seen > 0


def _ends_docstring(above: bytes) -> bool:
    """Return whether a text ends with a triple-quoted string that is a whole statement."""
    text = above.rstrip()
    if not text.endswith(_QUOTES):
        return False
    start = text.rfind(text[-3:], 0, len(text) - 3)
    begun = _DOCSTRING.match(text, text.rfind(b"\n", 0, start) + 1) if start >= 0 else None
    return begun is not None and begun.end() == start + 3


class Assignment(Filter):
    """Cut the text before an assignment in a condition that begins before the cursor, as in `if (done = true)`.

    `line` is the text before the cursor on the cursor's line; `condition` is a regular expression for the text before
    the `=` (see `Language.condition`).
    """

    def __init__(self, line: bytes, condition: str) -> None:
        super().__init__()
        self._line = line
        self._condition = re.compile(condition.encode()) if condition and _HEAD.search(line) else None

    def _look(self, text: bytearray) -> None:
        for index in range(max(1, self.read), len(text) if self._condition else 0):
            if text[index - 1] == 0x0A:
                self._condition = None
                break
            if text[index - 1] == 0x3D and text[index] not in b"=>~" and self._assigns(bytes(text[: index - 1])):
                self._end(index + 1, len(text[: index - 1].rstrip()), "a condition assigns nothing")
                return
        self.certain = len((text[:-1] if text.endswith(b"=") else text).rstrip())

    def _assigns(self, written: bytes) -> bool:
        code = self._line + written
        if self._condition is None or len(code) > MAX_CONDITION or code[-1:] in _OF_OPERATORS:
            return False
        code = _STRING.sub(b"_", code)
        for _ in range(_NESTED):
            code = _PAIR.sub(b"", code)
        return self._condition.search(code) is not None
