"""What a language's grammar says about the tip of a short text: parsed, and looked up by its `contexts.scm`. Runs in a
process that the fork server made. Always parses from nothing: trees made from older ones differ where the code is
broken.

py-tree-sitter (0.25, 0.26) never frees what a read callback returns. So each text is put into one buffer, and the
callback returns parts of that.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import tree_sitter

from codespec_grammars.queries import look_up
from codespec_grammars.registry import Grammar, load_grammar

SECONDS = 0.1  # of the processor, for a parse that makes no progress reports; clean code takes 1 ms
MEMORY = 256 << 20
# Progress reports before a parse is given up; each is a hundred steps of the parser, in clean code 13 microseconds, in
# garbage up to 200. Dense clean code takes 17 per KB.
MOST_STEPS = 32
MOST_BYTES = 8192


class Service:
    """Looks up the tips of texts in one language."""

    def __init__(self, language: str) -> None:
        grammar = load_grammar(language)
        assert isinstance(grammar, Grammar)  # who asks has it
        self._contexts, self._parser = grammar.contexts, Parser(grammar.language)

    def answer(self, request: tuple[str, int, int, int]) -> tuple[Any, ...] | None:
        """The fields of `Found` for a text, where the placeholder stands in it and how long that is, and the end of the
        last token before it; None if the parse was given up."""
        text, tip, width, left = request
        tree = self._parser.parse(text.encode())
        return astuple(look_up(tree, self._contexts, tip, width, left)) if tree is not None else None


class _Buffer:
    """Holds one text at a time; both end together."""

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
        """The text from `offset` on; one object for each offset, however often it is asked for."""
        start = min(self._start + offset, MOST_BYTES)
        if start not in self._parts:
            self._parts[start] = self._end[start:]
        return self._parts[start]


class Parser:
    """A parser for one language. A tree is to be looked up before the next text is parsed."""

    def __init__(self, language: tree_sitter.Language) -> None:
        self._parser = tree_sitter.Parser(language)
        self._buffer = _Buffer()

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """The tree of `text`; None if it is too long, or if parsing it takes too many steps."""
        if len(text) > MOST_BYTES:
            return None
        buffer = self._buffer
        buffer.put(text)
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MOST_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            # A query reads nodes byte by byte: those objects are never new.
            return text[offset : offset + 1] if done else buffer.part(offset)

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            return None
        finally:
            done = True
