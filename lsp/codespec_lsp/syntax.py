"""What syntax says about a document's cursor: its context, the open brackets, the indent.

A `ContextTracker` looks at a window around the cursor. The tree of the whole file, kept up to date edit by edit and
parsed in slices, adds what was opened too far above to be in that window.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import tree_sitter
from codespec_grammars import Context, ContextTracker, Cursor
from codespec_grammars.contexts import TEXT_LIKE
from codespec_grammars.registry import Grammar, load_grammar
from codespec_grammars.window import kept_from

from codespec_lsp.buffer import Edit
from codespec_lsp.outlines import outline

TREE_AFTER = 0.03  # seconds after a change: the answer goes first
MOST_AFTER = 8192  # characters to the right; the tracker looks at less
MOST_APPENDED = 4096  # bytes that are typed on before a tracker is made anew
SLICE = 0.004  # seconds that nothing else can run
MOST_BYTES = 4 << 20
MOST_DEPTH = 400
FIRST_CHILDREN = 8  # an opener is among them
PAIRS = {"(": ")", "[": "]", "{": "}"}
CHUNK = 4096

# py-tree-sitter never frees what a read callback returns, so that callback returns only parts of this, each made once.
_chunk = bytearray(CHUNK)
_whole_chunk = memoryview(_chunk)
_chunk_ends: dict[int, memoryview] = {}


class DocumentSyntax:
    """The syntax of one document; `language` is a grammar's name, "" for none."""

    def __init__(self, language: str, text: str) -> None:
        self._cursors = CursorFinder(language)
        self._tree = SyntaxTree(language, text)
        self._refreshing: asyncio.Task[None] | None = None
        self._outlined, self._outline = 0, ""
        self._refresh_soon()

    def edited(self, edit: Edit) -> None:
        """The document changed. The tree is parsed in a moment."""
        self._tree.edited(edit)
        self._refresh_soon()

    @property
    def parsed(self) -> int:
        """How many times the document was parsed to its end: an outline is of the last one."""
        return self._tree.parsed

    def outline(self) -> str:
        """The heads of what the document defines, as of its last whole parse; "" before the first."""
        root = self._tree.root if self._tree.fresh else None
        if root is not None and self._outlined != self._tree.parsed:
            self._outlined, self._outline = self._tree.parsed, outline(root, self._tree.source)
        return self._outline

    def close(self) -> None:
        """The document is gone."""
        if self._refreshing is not None:
            self._refreshing.cancel()

    def find_cursor(self, prefix: str, suffix: str, bytes_before: int, in_document: bool) -> Cursor:
        """The facts about the cursor between prefix and suffix. The tree helps where both are `in_document`."""
        return self._cursors.find(prefix, suffix, self._tree if in_document else None, bytes_before)

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        await asyncio.sleep(TREE_AFTER)
        await self._tree.refresh()


class CursorFinder:
    """Finds the facts about the cursor in one document. It follows the text, so that typing on costs what is new."""

    def __init__(self, language: str) -> None:
        self._language = language if isinstance(load_grammar(language) if language else None, Grammar) else ""
        self._followed: _FollowedText | None = None

    def find(self, prefix: str, suffix: str, tree: SyntaxTree | None = None, bytes_before: int = 0) -> Cursor:
        """The facts about the cursor between prefix and suffix. `bytes_before` of the file stand before the prefix;
        only the tree has seen them."""
        if not self._language:
            return Cursor()
        data = prefix.encode()
        followed = self._follow(data, suffix[:MOST_AFTER].encode())
        own = followed.tracker.context()
        if tree is None:
            return own
        outside = tree.outside(bytes_before + len(data), bytes_before + followed.seen_from)
        if outside.text is None or own.context in TEXT_LIKE:
            return Cursor(own.context, outside.brackets + own.open_brackets, own.indent, own.language)
        return Cursor(outside.text, outside.brackets, own.indent, own.language)

    def _follow(self, prefix: bytes, suffix: bytes) -> _FollowedText:
        if self._followed is None or not self._followed.leads_to(prefix, suffix):
            self._followed = _FollowedText(self._language, prefix, suffix)
        self._followed.go_to(prefix)
        return self._followed


class _FollowedText:
    """A tracker of one text, and what was appended to it."""

    def __init__(self, language: str, prefix: bytes, suffix: bytes) -> None:
        self.tracker = ContextTracker(language, prefix, suffix)
        self._prefix, self._suffix = prefix, suffix
        self._appended = b""

    @property
    def seen_from(self) -> int:
        """The first byte of the text that the tracker looks at."""
        lexed = self.tracker.lexed
        return kept_from(len(self._prefix)) + (lexed.start if lexed else 0)

    def leads_to(self, prefix: bytes, suffix: bytes) -> bool:
        """Whether another text is this one with something appended."""
        near = 0 <= len(prefix) - len(self._prefix) <= MOST_APPENDED
        return near and suffix == self._suffix and prefix.startswith(self._prefix)

    def go_to(self, prefix: bytes) -> None:
        """Appends and takes back what makes it that text."""
        before, appended = self._appended, prefix[len(self._prefix) :]
        if not appended.startswith(before):
            before = appended if before.startswith(appended) else b""
            self.tracker.rollback(len(before))
        self.tracker.advance(appended[len(before) :])
        self._appended = appended


@dataclass(frozen=True, slots=True)
class Outside:
    """What was opened before one position and is open at another: brackets, outermost first, and the text around."""

    brackets: str = ""
    text: Context | None = None


class SyntaxTree:
    """The tree of a whole document. Edits are taken at once, and applied when somebody asks or there is time."""

    def __init__(self, language: str, text: str) -> None:
        grammar = load_grammar(language) if language else None
        self._parser = tree_sitter.Parser(grammar.language) if isinstance(grammar, Grammar) else None
        self._source = text.encode("utf-8", "replace")
        self._edits: list[Edit] = []
        self._tree: tree_sitter.Tree | None = None
        self.slices = 0
        self.parsed = 0
        self.fresh = False

    @property
    def source(self) -> bytes:
        """The text that the tree is of."""
        return self._source

    @property
    def root(self) -> tree_sitter.Node | None:
        """The tree's root; None where nothing is parsed yet."""
        return self._tree.root_node if self._tree else None

    def edited(self, edit: Edit) -> None:
        """Takes an edit, in order. Without a grammar nobody ever applies it, so it is dropped."""
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
                        self.parsed += 1
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


def _part(text: bytes, offset: int) -> memoryview:
    piece = text[offset : offset + CHUNK]
    start = CHUNK - len(piece)
    _chunk[start:] = piece
    if start not in _chunk_ends:
        _chunk_ends[start] = _whole_chunk[start:]
    return _chunk_ends[start]
