"""Parses a small text again and again as it changes. Knows tree-sitter's parser, edits and slices; does not know what
the text means. No slice holds the interpreter long, and a parse that needs too many steps is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import tree_sitter

CHUNK = 1024  # bytes a read; the interpreter can change threads at each
SLICE = 20  # progress reports (13 microseconds each in clean code, up to 100 elsewhere) before other threads get a turn
MOST_STEPS = 160  # progress reports before a parse is given up; 4 KB of dense clean code take about 100
SMALL = 2048  # bytes up to which a parse from nothing costs no more than one that begins with an old tree


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, the text that it was made of and the tip in it."""

    tree: tree_sitter.Tree
    text: bytes
    tip: int


class SlicedParser:
    """One parser for one language; counts the bytes and the parses."""

    def __init__(self, language: tree_sitter.Language) -> None:
        self._parser = tree_sitter.Parser(language)
        self.parses = self.bytes_parsed = self.given_up = 0

    def parse(self, text: bytes, tip: int, old: Parsed | None) -> Parsed | None:
        """The tree of `text`; `old` is an earlier one whose text begins and ends alike. None where given up."""
        tree = None if old is None or len(text) <= SMALL else _edited(old, text, tip)
        self.parses += 1
        self.bytes_parsed += len(text)
        steps = 0

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps % SLICE == 0

        def read(offset: int, _point: tree_sitter.Point) -> bytes:
            return text[offset : offset + CHUNK]

        while steps < MOST_STEPS:
            try:
                return Parsed(self._run(read, progress, tree), text, tip)
            except ValueError:  # the slice is over; the next call goes on where it stopped
                time.sleep(0)
        self._parser.reset()
        self.given_up += 1
        return None

    def _run(
        self,
        read: Callable[[int, tree_sitter.Point], bytes],
        progress: Callable[[int, bool], bool],
        tree: tree_sitter.Tree | None,
    ) -> tree_sitter.Tree:
        if tree is None:  # the parser refuses a None
            return self._parser.parse(read, progress_callback=progress)
        return self._parser.parse(read, old_tree=tree, progress_callback=progress)


def _edited(old: Parsed, text: bytes, tip: int) -> tree_sitter.Tree:
    """A copy of the old tree, told which bytes differ."""
    start = _same_start(old.text, text, min(old.tip, tip))
    same = _same_end(old.text, text, min(len(old.text), len(text)) - start)
    old_end, new_end = len(old.text) - same, len(text) - same
    tree = old.tree.copy()
    tree.edit(start, old_end, new_end, _point(text, start), _point(old.text, old_end), _point(text, new_end))
    return tree


def _same_start(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the start are the same, at most `most`; by halving."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            most = middle - 1
    return low


def _same_end(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the end are the same, at most `most`; by halving."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            most = middle - 1
    return low


def _point(text: bytes, offset: int) -> tuple[int, int]:
    return text.count(b"\n", 0, offset), offset - (text.rfind(b"\n", 0, offset) + 1)
