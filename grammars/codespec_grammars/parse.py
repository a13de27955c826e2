"""Parses a small text. Knows tree-sitter's parser, its progress reports and a leak around them; does not know what the
text means. Always from nothing: trees made from older ones differ where the code is broken.

py-tree-sitter (0.25, 0.26) never frees what a read callback gives it. So texts are put into a few buffers that live as
long as the process does, and the callback gives parts of those.
"""

from __future__ import annotations

import tree_sitter

# Progress reports before a parse is given up; each is a hundred steps of the parser, in clean code 13 microseconds, in
# garbage up to 200. Dense clean code takes 17 per KB.
MOST_STEPS = 32
MOST_BYTES = 8192


class _Buffer:
    """A place for one text at a time; its end is the text's."""

    def __init__(self) -> None:
        self._bytes = bytearray(MOST_BYTES)
        self._parts: dict[int, memoryview] = {}
        self._end = memoryview(self._bytes)
        self._start = MOST_BYTES

    def put(self, text: bytes) -> None:
        """Replaces the text."""
        self._start = MOST_BYTES - len(text)
        self._bytes[self._start :] = text

    def part(self, offset: int) -> memoryview:
        """The text from `offset` on; one object for each place, however often it is asked for."""
        place = min(self._start + offset, MOST_BYTES)
        if place not in self._parts:
            self._parts[place] = self._end[place:]
        return self._parts[place]


# Those in use by nobody: as many as ever parsed at once.
_idle: list[_Buffer] = []


class Parser:
    """One parser for one language; counts the bytes and the parses."""

    def __init__(self, language: tree_sitter.Language) -> None:
        self._parser = tree_sitter.Parser(language)
        self.parses = self.bytes_parsed = self.given_up = 0

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """The tree of `text`; None where given up. Other threads can have the interpreter at each report."""
        self.parses += 1
        self.bytes_parsed += len(text)
        if len(text) > MOST_BYTES:
            self.given_up += 1
            return None
        buffer = _idle.pop() if _idle else _Buffer()
        buffer.put(text)
        try:
            return self._run(text, buffer)
        finally:
            _idle.append(buffer)

    def _run(self, text: bytes, buffer: _Buffer) -> tree_sitter.Tree | None:
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MOST_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            # A query reads nodes once the buffer is another's: byte by byte, for those objects are never new.
            return text[offset : offset + 1] if done else buffer.part(offset)

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            self.given_up += 1
            return None
        finally:
            done = True
