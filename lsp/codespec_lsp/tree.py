"""The tree of a whole file, kept up to date edit by edit and parsed in slices, for what lies too far above the cursor
to be seen in a window: what was opened there.

Knows tree-sitter; knows no documents. Decisions near the cursor are codespec_grammars' own, which needs no old tree.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import tree_sitter
from codespec_grammars import Context
from codespec_grammars.registry import Grammar, load_grammar

from codespec_lsp.buffer import Edit

SLICE = 0.004  # seconds that nothing else can run
MOST_BYTES = 4 << 20
MOST_DEPTH = 400
FIRST_CHILDREN = 8  # an opener is among them
PAIRS = {"(": ")", "[": "]", "{": "}"}
CHUNK = 4096

# py-tree-sitter never frees what a read callback gives it, so that callback gives only parts of this, each made once.
_chunk = bytearray(CHUNK)
_whole_chunk = memoryview(_chunk)
_chunk_ends: dict[int, memoryview] = {}


def _part(text: bytes, offset: int) -> memoryview:
    piece = text[offset : offset + CHUNK]
    start = CHUNK - len(piece)
    _chunk[start:] = piece
    if start not in _chunk_ends:
        _chunk_ends[start] = _whole_chunk[start:]
    return _chunk_ends[start]


@dataclass(frozen=True, slots=True)
class Outside:
    """What was opened before a place and is open at another: brackets, outermost first, and the kind of text around."""

    brackets: str = ""
    text: Context | None = None


class SyntaxTree:
    """Of one document. Edits are taken at once and looked at when somebody asks or there is time."""

    def __init__(self, language: str, text: str) -> None:
        grammar = load_grammar(language) if language else None
        self._parser = tree_sitter.Parser(grammar.language) if isinstance(grammar, Grammar) else None
        self._source = text.encode("utf-8", "replace")
        self._edits: list[Edit] = []
        self._tree: tree_sitter.Tree | None = None
        self.slices = 0
        self.fresh = False

    @property
    def root(self) -> tree_sitter.Node | None:
        """The tree's root; None where nothing is parsed yet."""
        return self._tree.root_node if self._tree else None

    def edited(self, edit: Edit) -> None:
        """Takes an edit, in order; for nothing where there is no grammar, and nobody ever looks."""
        if self._parser is not None:
            self._edits.append(edit)
        self.fresh = False

    def sync(self) -> None:
        """Moves what is in the tree to where the edits put it."""
        for edit in self._edits:
            start = _byte(self._source, edit.start)
            removed, text = edit.removed.encode("utf-8", "replace"), edit.text.encode("utf-8", "replace")
            old = self._source
            self._source = old[:start] + text + old[start + len(removed) :]
            if self._tree is not None:
                end, new_end = start + len(removed), start + len(text)
                self._tree.edit(
                    start, end, new_end, _point(old, start), _point(old, end), _point(self._source, new_end)
                )
        self._edits.clear()

    async def refresh(self) -> None:
        """Parses what changed, and lets others run between two slices. Starts anew where an edit comes in between."""
        parser = self._parser
        while parser is not None and not self.fresh and len(self._source) <= MOST_BYTES:
            self.sync()
            parser.reset()
            source = self._source
            while not self._edits:
                tree = self._slice(parser, source)
                await asyncio.sleep(0)
                if tree is not None:
                    if not self._edits:
                        self._tree, self.fresh = tree, True
                    break

    def _slice(self, parser: tree_sitter.Parser, source: bytes) -> tree_sitter.Tree | None:
        """Goes on for SLICE; the tree once it is whole."""
        self.slices += 1
        end = time.perf_counter() + SLICE

        def read(offset: int, _point: tree_sitter.Point) -> memoryview:
            return _part(source, offset)

        def late(_offset: int, _has_error: bool) -> bool:
            return time.perf_counter() > end

        try:
            if self._tree is None:
                return parser.parse(read, progress_callback=late)
            return parser.parse(read, self._tree, progress_callback=late)
        except ValueError:
            return None  # stopped; the next call goes on from there

    def outside(self, tip: int, seen_from: int) -> Outside:
        """What was opened before `seen_from` and is still open at `tip`, both in bytes."""
        self.sync()
        root = self.root
        if root is None or seen_from <= 0:
            return Outside()
        tip = len(self._source[:tip].rstrip())
        node = root.descendant_for_byte_range(max(0, tip - 1), tip)
        brackets, text = "", None
        for _ in range(MOST_DEPTH):
            if node is None:
                break
            if node.start_byte < seen_from:
                brackets = _opener(node, tip, seen_from) + brackets
                if text is None and node.end_byte >= tip:
                    text = _kind_of_text(node)
            node = node.parent
        return Outside(brackets, text)


def _opener(node: tree_sitter.Node, tip: int, seen_from: int) -> str:
    """The bracket that a node begins with, where it is open at the tip."""
    for index in range(min(node.child_count, FIRST_CHILDREN)):
        child = node.child(index)
        if child is None or child.start_byte >= seen_from:
            return ""
        if child.type in PAIRS:
            last = node.child(node.child_count - 1)
            if last is None or last.is_missing or last.type != PAIRS[child.type] or last.start_byte >= tip:
                return child.type
            return ""
    return ""


def _kind_of_text(node: tree_sitter.Node) -> Context | None:
    """Which kind of text a node is; None for code."""
    kind = node.type
    if kind.endswith("comment"):
        return Context.COMMENT
    if kind not in ("string", "template_string", "raw_string_literal", "string_literal", "heredoc_body"):
        return None
    parent = node.parent
    alone = parent is not None and parent.type == "expression_statement" and parent.child_count == 1
    return Context.DOCSTRING if alone else Context.STRING


def _byte(source: bytes, offset: int) -> int:
    """Where a character begins."""
    if source.isascii():
        return offset
    return len(source.decode("utf-8", "replace")[:offset].encode())


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - (source.rfind(b"\n", 0, offset) + 1)
