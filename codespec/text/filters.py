"""Cut stop strings, markers, repetitions and trivial text from a completion, and text already right of the cursor.

Each filter follows a growing text and reads each byte once. `cut` is the end of the text: it is decided at one byte
and later bytes do not move it. `certain` is the number of bytes that no later byte can remove. No filter changes a
byte: indentation and line ends stay as written. Operates on bytes and lines, independent of language and tokens.

`RestOfLine` recognizes the rest of the cursor's line at the end of a completion, where it would be inserted twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codespec_grammars import Cut

LONGEST_PERIOD, MIN_LOOP = 96, 48  # bytes of a unit repeated within a line, and of all its repetitions
LONG_UNIT = 16  # bytes of a unit that loops if it occurs three times; a shorter one must occur four times
MAX_LINES = 8  # lines of a repeated block
MAX_BELOW, MIN_WORDS = 40, 4  # non-blank lines below the cursor, and words of a statement, that may not be repeated
_WORDS = re.compile(rb"[\w\x80-\xff]+")
_NO_STATEMENTS = (b"#", b"//", b"/*", b"*", b"@")
LONGEST_BLANK = 64  # consecutive bytes of white space in a line; code is rarely indented or aligned further


class StopFinder:
    """Finder of stop strings in a growing text; the result does not depend on the chunk sizes."""

    def __init__(self, stops: tuple[bytes, ...] = ()) -> None:
        self.stops = stops
        self._longest = max(map(len, stops), default=0)

    def find(self, text: bytes | bytearray, start: int = 0) -> int | None:
        """Return the offset at which to cut the text, or None if the bytes from `start` on complete no stop string.

        If several match, the one completed first wins, then the longest, as if read byte by byte, so the cut does not
        depend on the number of bytes per round.
        """
        matches: list[tuple[int, int]] = []
        for stop in self.stops:
            place = text.find(stop, max(0, start - len(stop) + 1))
            if place >= 0:
                matches.append((place + len(stop), place))
        return min(matches)[1] if matches else None

    def held_back(self, text: bytes | bytearray) -> int:
        """Return the number of trailing bytes that can begin a stop string."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in lengths if self._may_begin(bytes(text[-size:]))), 0)

    def _may_begin(self, tail: bytes) -> bool:
        return any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.stops)


class Filter:
    """Filter of one text; `read` is the number of bytes already processed."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.certain = 0
        self.read = 0

    def advance(self, text: bytearray) -> None:
        """Process the bytes appended to the text; bytes after a cut have no effect."""
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
    """Cut before a control token that the model spelled out as text."""

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
    """Filter that decides line by line; `line` is the text before the cursor on its line."""

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
        """Return the last line, up to byte `end`."""
        return (b"" if self._start else self._line) + text[self._start : end]

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        """Process a line that ends before byte `end`."""
        raise NotImplementedError

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        """Return the number of certain bytes, given the unfinished last line."""
        return len(text.rstrip())


class RepeatedLine(Lines):
    """Cut above a line that equals one of `below`, lines below the cursor; each has a word."""

    def __init__(self, line: bytes, below: Sequence[bytes]) -> None:
        super().__init__(line)
        self._below = frozenset(below)

    def finish(self, text: bytearray) -> None:
        """Check the last line, which is now whole."""
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
    """Return the lines below the cursor that a completion may not repeat; `after` begins on the cursor's line.

    These are the next non-blank line, and each statement of MIN_WORDS words among the next MAX_BELOW lines that is in
    the cursor's block or in one around it. Shorter ones, comments and decorators are repeated in ordinary code.
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
    """Cut after `most` non-blank lines."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        self._left -= bool(line.strip())
        if not self._left:
            self._end(end + 1, len(text[:end].rstrip()), "it is long enough")


class LineLoop(Lines):
    """Cut after the first of several equal blocks of lines.

    A block of one or two lines must occur three times, a longer block twice.
    """

    def __init__(self, line: bytes = b"") -> None:
        super().__init__(line)
        self._lines: list[tuple[int, bytes]] = []  # end and bytes of each whole non-blank line
        self._runs = [0] * (MAX_LINES + 1)  # by lag: length of the run of lines equal to the line `lag` above

    def _add(self, text: bytearray, line: bytes, end: int) -> None:
        if not line.strip():
            return
        lines, runs, index = self._lines, self._runs, len(self._lines)
        lines.append(self._shown(line, end))
        for lag in range(1, MAX_LINES + 1):
            runs[lag] = runs[lag] + 1 if index >= lag and lines[index - lag][1] == lines[index][1] else 0
            if runs[lag] >= _needed(lag) and any(has_word(content) for _, content in lines[index - lag + 1 :]):
                self._end(end + 1, lines[index - runs[lag]][0], "it repeats itself")
                return

    def _shown(self, line: bytes, end: int) -> tuple[int, bytes]:
        shown = line.removesuffix(b"\r")
        return max(0, end - len(line) + len(shown)), shown

    def _sure(self, text: bytearray, unfinished: bytes) -> int:
        """Return the end of the text above the trailing lines (an unfinished one included) that repeat others."""
        certain, shown = len(text.rstrip()), unfinished.removesuffix(b"\r") if unfinished.strip() else None
        for lag in range(1, min(MAX_LINES, len(self._lines)) + 1):
            goes_on = self._runs[lag] if shown is None else self._lines[-lag][1].startswith(shown)
            if goes_on:
                certain = min(certain, self._lines[-self._runs[lag] - 1][0])
        return certain


class ByteLoop(Filter):
    """Cut after the first repetition of a short unit within a line, once enough repetitions follow."""

    def __init__(self) -> None:
        super().__init__()
        self._begin_line(0)

    def _begin_line(self, start: int) -> None:
        self._start, self._word = start, -1
        self._runs = [0] * (LONGEST_PERIOD + 1)  # by lag: length of the run of bytes equal to the byte `lag` before

    def _look(self, text: bytearray) -> None:
        for index in range(self.read, len(text)):
            if text[index] == 0x0A:
                self._begin_line(index + 1)
            elif self._loops(text, index):
                return
        last = len(text) - 1
        held = (size - lag for lag, size in enumerate(self._runs) if last - self._word < lag < size)
        self.certain = len(text) - max(held, default=0)

    def _loops(self, text: bytearray, index: int) -> bool:
        """Process a byte and return whether it completes a loop."""
        runs, byte = self._runs, text[index]
        self._word = index if has_word(text[index : index + 1]) else self._word
        for lag in range(1, min(LONGEST_PERIOD, index - self._start) + 1):
            if text[index - lag] != byte:
                runs[lag] = 0
                continue
            runs[lag] += 1
            needed = (2 if lag >= LONG_UNIT else 3) * lag
            if self._word > index - lag and runs[lag] >= needed and runs[lag] + lag >= MIN_LOOP:
                self._end(index + 1, index + 1 - runs[lag] + lag, "it repeats itself")
                return True
        return False


class BlankRun(Filter):
    """Cut before a very long run of white space within a line, as written by a model that lost the indentation."""

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


def _needed(lag: int) -> int:
    """Return how many consecutive lines must equal the line `lag` above."""
    return {1: 2, 2: 4, 3: 3}.get(lag, lag)


def has_word(text: bytes | bytearray) -> bool:
    """Return whether the text contains a letter, a digit or part of a non-ASCII character, not just punctuation."""
    return any(byte >= 0x80 or chr(byte).isalnum() for byte in text)


MAX_RIGHT = 2048  # bytes of the rest of a line to compare
_CLOSING = b")]};,"
_CLOSING_SIGNS = b")]}>\"'` \t"


class RestOfLine:
    """Matcher of a completion against `right`, the rest of the cursor's line.

    Each byte is read once, whatever the line contains (Knuth, Morris and Pratt 1977).
    """

    def __init__(self, right: bytes) -> None:
        self._stems = [_Stem(stem) for stem in _stems(right[:MAX_RIGHT])]
        self._spaced = right[:1].isspace()
        self._text = bytearray()
        self._shown = [0]  # by length of the text: bytes left without trailing spaces
        self._left = [0]  # the same, also without the rest of the line

    def advance(self, data: bytes) -> None:
        """Append bytes."""
        self._text += data
        for stem in self._stems:
            stem.advance(data)
        for end in range(len(self._left), len(self._text) + 1):
            spare = self._spaced and self._text[end - 1] in b" \t"
            self._shown.append(self._shown[end - 1] if spare else end)
            size = self._overlap(end)
            self._left.append(self._left[self._shown[end - size]] if size else self._shown[end])

    def left(self, end: int) -> int:
        """Return how many of the first `end` bytes to keep if the text ends there.

        Drops the rest of the line, or a beginning of it, if the text repeats it, and a trailing space if the rest
        starts with one.
        """
        return self._left[end]

    def least(self, end: int) -> int:
        """Return a lower bound of `left` for the first `end` bytes, whatever follows them."""
        begun = (end - size for stem in self._stems for size in stem.begun(end))
        return min([self._left[end], *(self._left[self._shown[start]] for start in begun)])

    def _overlap(self, end: int) -> int:
        return next((size for stem in self._stems if (size := stem.overlap(self._text, end))), 0)


class _Stem:
    """One spelling of the rest of a line.

    A border of a text is a prefix of the stem that is a suffix of the text.
    """

    def __init__(self, stem: bytes) -> None:
        self.stem = stem
        self._closers = len(stem) - len(stem.lstrip(_CLOSING_SIGNS))
        self._border = [0, 0]  # the longest proper border of each prefix of the stem, by its size
        for size in range(1, len(stem)):
            self._border.append(self._grown(self._border[size], stem[size]))
        self._whole = [0, 0]  # the longest border that can be cut
        for size in range(2, len(stem) + 1):
            border = self._border[size]
            fits = border and self._may_end(border) and self._may_begin(stem[size - border - 1])
            self._whole.append(border if fits else self._whole[border])
        self._longest = [0]  # longest border by length of the text

    def advance(self, data: bytes) -> None:
        """Append bytes."""
        for byte in data:
            self._longest.append(self._grown(self._longest[-1], byte))

    def overlap(self, text: bytearray, end: int) -> int:
        """Return the size of the longest border of `text[:end]` that begins and ends at word boundaries."""
        size = self._longest[end]
        fits = self._may_end(size) and (size == end or self._may_begin(text[end - size - 1]))
        return size if fits else self._whole[size]

    def begun(self, end: int) -> list[int]:
        """Return the sizes of all borders of a text of `end` bytes that may grow, including the empty one."""
        sizes, size = [0], self._longest[end]
        while size:
            sizes.append(size)
            size = self._border[size]
        return [size for size in sizes if size < len(self.stem)]

    def _grown(self, border: int, byte: int) -> int:
        """Return the longest border after one more byte."""
        while border and (border == len(self.stem) or self.stem[border] != byte):
            border = self._border[border]
        return border + (self.stem[border] == byte)

    def _may_end(self, size: int) -> bool:
        """Return whether a border of this size ends at a word boundary and contains more than closing signs."""
        if size == len(self.stem):
            return True
        split = size and has_word(self.stem[size - 1 : size]) and has_word(self.stem[size : size + 1])
        return size > self._closers and not split

    def _may_begin(self, before: int) -> bool:
        """Return whether the stem starts at a word boundary after this byte."""
        return not (has_word(bytes([before])) and has_word(self.stem[:1]))


def _stems(right: bytes) -> list[bytes]:
    """Return the spellings of the rest of a line: whole, and without its trailing closers.

    Closers alone identify nothing.
    """
    whole = right.strip()
    stem = whole.rstrip(_CLOSING + b" \t")
    if stem:
        return list(dict.fromkeys((whole, stem)))
    return [whole] if whole and not set(whole) & set(b")]}") else []
