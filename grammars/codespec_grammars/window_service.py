"""Parse a short text and look up the captures at its tip, in a process made by the fork server.

Never parses incrementally: an incremental tree differs from a fresh one if the code is broken.

py-tree-sitter (0.25, 0.26) never frees the objects that a read callback returns. So each text is put into one buffer,
and the callback returns views of that.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import tree_sitter

from codespec_grammars.queries import look_up
from codespec_grammars.registry import Grammar, load_grammar

# Progress callbacks before a parse is given up. One comes every hundred parser steps: 13 microseconds in clean code, up
# to 200 in garbage. Dense clean code takes 17 callbacks per KB.
MAX_STEPS = 32
MAX_BYTES = 8192


class WindowService:
    """Looks up the tips of texts in one language."""

    SECONDS = 0.1  # CPU time limit, for a parse that makes no progress callbacks; clean code takes 1 ms
    MEMORY = 256 << 20

    def __init__(self, language: str) -> None:
        grammar = load_grammar(language)
        assert isinstance(grammar, Grammar)  # the client checked
        self._contexts, self._parser = grammar.contexts, WindowParser(grammar.language)

    def answer(self, request: tuple[str, int, int, int]) -> tuple[Any, ...] | None:
        """Return the fields of `Captures`, or None if the parse was given up.

        `request` is the text, the placeholder's position and length, and the end of the last token before it, in bytes.
        """
        text, tip, width, left = request
        tree = self._parser.parse(text.encode())
        return astuple(look_up(tree, self._contexts, tip, width, left)) if tree is not None else None


class _Buffer:
    """A fixed buffer for one text at a time, aligned to its end."""

    def __init__(self) -> None:
        self._bytes = bytearray(MAX_BYTES)
        self._parts: dict[int, memoryview] = {}
        self._end = memoryview(self._bytes)
        self._start = MAX_BYTES

    def put(self, text: bytes) -> None:
        """Replace the text."""
        self._start = MAX_BYTES - len(text)
        self._bytes[self._start :] = text

    def part(self, offset: int) -> memoryview:
        """Return the text from `offset` on, always the same object for the same position in the buffer."""
        start = min(self._start + offset, MAX_BYTES)
        if start not in self._parts:
            self._parts[start] = self._end[start:]
        return self._parts[start]


class WindowParser:
    """A parser for one language. A tree is valid only until the next text is parsed."""

    def __init__(self, language: tree_sitter.Language) -> None:
        self._parser = tree_sitter.Parser(language)
        self._buffer = _Buffer()

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """Return the tree of `text`, or None if the text is too long or parsing it takes too many steps."""
        if len(text) > MAX_BYTES:
            return None
        buffer = self._buffer
        buffer.put(text)
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MAX_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            # A query reads nodes byte by byte, and one-byte objects are cached by Python.
            return text[offset : offset + 1] if done else buffer.part(offset)

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            return None
        finally:
            done = True
