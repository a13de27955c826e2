"""Recognize the rest of the cursor's line at the end of a completion, so that it is not inserted twice.

Each byte is read once, whatever the line contains (Knuth, Morris and Pratt 1977). Operates on bytes, not on tokens.
"""

from __future__ import annotations

from codespec.text.filters import has_word

MOST_RIGHT = 2048  # bytes of the rest of a line to compare
_CLOSING = b")]};,"
_CLOSING_SIGNS = b")]}>\"'` \t"


class RestOfLine:
    """Matcher of a completion against `right`, the rest of the cursor's line."""

    def __init__(self, right: bytes) -> None:
        self._stems = [_Stem(stem) for stem in _stems(right[:MOST_RIGHT])]
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
        self._whole = [0, 0]  # the longest border that may be cut
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
