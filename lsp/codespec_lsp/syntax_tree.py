"""Keep the tree of an open document up to date, in a process made by the fork server.

The tree gives the brackets that are open around a position, and the document's outline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import tree_sitter
from codespec_grammars.contexts import Context
from codespec_grammars.grammar import load_grammar, nodes_around
from codespec_grammars.language import load_name_facts

from codespec_lsp.name_scopes import SameName, find_same_name
from codespec_lsp.outline import Outline, outline

MAX_BYTES = 4 << 20  # of a document
MAX_DEPTH = 400
FIRST_CHILDREN = 8  # children of a node that are searched for an opener
PAIRS = {"(": ")", "[": "]", "{": "}"}


class Change(NamedTuple):
    """A replacement of `removed` code points with `text` at `start`, an offset in code points of the old text."""

    start: int
    removed: int
    text: str


class TreeService:
    """Holds the tree of one document."""

    SECONDS = 5.0  # CPU time for a parse; 4 MB take less than one second
    MEMORY = 512 << 20  # the tree of 4 MB takes 300 MB

    def __init__(self, language: str) -> None:
        self._language = language
        self.tree = SyntaxTree(language, "")

    def answer(self, request: dict[str, Any]) -> Any:
        """Apply the request's `text` or `changes`.

        If the request has `outside`, return the `Outside` of a window; if it has `rename`, the `SameName` of a renamed
        name, or None. Otherwise parse, from the text alone if it has `afresh`, and return the outline.
        """
        if "text" in request:
            self.tree = SyntaxTree(self._language, request["text"])
        for change in request.get("changes", ()):
            self.tree.change(Change(*change))
        if "outside" in request:
            return self.tree.outside(*request["outside"])
        if "rename" in request:
            self.tree.parse()
            return self.tree.same_name(*request["rename"])
        self.tree.parse(afresh=request.get("afresh", False))
        return self.tree.outline()


class Outside(NamedTuple):
    """The brackets opened before one position and open at another, outermost first.

    `text` is the context of the comment or string around the second position, or None.
    """

    brackets: str = ""
    text: str | None = None


class SyntaxTree:
    """The tree of a text, adjusted at each change and parsed on demand."""

    def __init__(self, language: str, text: str) -> None:
        grammar = load_grammar(language)
        assert grammar is not None  # the client checked
        self._parser = tree_sitter.Parser(grammar.language)
        self._source = text.encode("utf-8", "replace")
        self._tree: tree_sitter.Tree | None = None
        self._facts = load_name_facts(language)

    @property
    def root(self) -> tree_sitter.Node | None:
        """The root of the tree, or None before the first parse."""
        return self._tree.root_node if self._tree else None

    def change(self, change: Change) -> None:
        """Apply a change to the source and shift the tree's nodes."""
        old = self._source
        start = _byte(old, change.start)
        end = start + _byte(old[start:], change.removed)
        text = change.text.encode("utf-8", "replace")
        self._source = old[:start] + text + old[end:]
        if self._tree is not None:
            new_end = start + len(text)
            self._tree.edit(start, end, new_end, _point(old, start), _point(old, end), _point(self._source, new_end))

    def parse(self, *, afresh: bool = False) -> None:
        """Parse, incrementally or afresh. A text longer than MAX_BYTES has no tree.

        An incremental tree of broken text can differ from a fresh one, also later, when the text is whole again.
        """
        if len(self._source) > MAX_BYTES:
            self._tree = None
        elif self._tree is None or afresh:
            self._tree = self._parser.parse(self._source)
        else:
            self._tree = self._parser.parse(self._source, self._tree)

    def outline(self) -> Outline:
        """Return the heads of the text's definitions."""
        return outline(self._tree.root_node, self._source) if self._tree is not None else []

    def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the other places of a name; the `renamed` ones, as those returned, are offsets in code points."""
        if self._tree is None or self._facts is None:
            return None
        starts = [_byte(self._source, offset) for offset in renamed]
        found = find_same_name(self._tree.root_node, self._source, self._facts, old, new, starts)
        if found is None:
            return None
        starts, shorthands = (_offsets(self._source, places) for places in (found.starts, found.shorthands))
        return found._replace(starts=starts, shorthands=shorthands)

    def outside(self, tip: int, seen_from: int) -> Outside:
        """Return what was opened before `seen_from` and is still open at `tip`, both byte offsets."""
        root = self.root
        tip = len(self._source[:tip].rstrip())
        if root is None or seen_from <= 0:
            return Outside()
        around = deque[tree_sitter.Node](maxlen=MAX_DEPTH)
        for node in nodes_around(root, max(0, tip - 1), tip):
            if node.start_byte >= seen_from:
                break
            around.append(node)
        brackets = "".join(_opener(node, tip, seen_from) for node in around)
        return Outside(brackets, _kind_of_text(around, tip))


def _opener(node: tree_sitter.Node, tip: int, seen_from: int) -> str:
    """Return the node's opening bracket if it is still open at the tip, else ""."""
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


def _kind_of_text(around: Sequence[tree_sitter.Node], tip: int) -> Context | None:
    """Return the context of the innermost comment or string that reaches the tip, or None for code."""
    for index in range(len(around) - 1, -1, -1):
        node = around[index]
        if node.end_byte < tip:
            continue
        if node.type.endswith("comment"):
            return Context.COMMENT
        if node.type in ("string", "template_string", "raw_string_literal", "string_literal", "heredoc_body"):
            parent = around[index - 1] if index else None
            alone = parent is not None and parent.type == "expression_statement" and parent.child_count == 1
            return Context.DOCSTRING if alone else Context.STRING
    return None


def _byte(source: bytes, offset: int) -> int:
    """Return the byte offset of a code point offset."""
    if source.isascii():
        return offset
    return len(source.decode("utf-8", "replace")[:offset].encode())


def _offsets(source: bytes, starts: Sequence[int]) -> list[int]:
    """Return the code point offsets of byte offsets."""
    return [len(source[:start].decode("utf-8", "replace")) for start in starts] if not source.isascii() else [*starts]


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - (source.rfind(b"\n", 0, offset) + 1)
