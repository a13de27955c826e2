"""The syntax tree of a whole document, in a process that the fork server made: kept up to date edit by edit, asked what
is open around a position and what the document defines. Knows no client and no other document.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import tree_sitter
from codespec_grammars.contexts import Context
from codespec_grammars.queries import nodes_around
from codespec_grammars.registry import Grammar, load_grammar

from codespec_lsp.outlines import outline

SECONDS = 5.0  # of the processor, for a parse; 4 MB take less than one
MEMORY = 512 << 20  # the tree of 4 MB takes 300
MOST_BYTES = 4 << 20
MOST_DEPTH = 400
FIRST_CHILDREN = 8  # an opener is among them
PAIRS = {"(": ")", "[": "]", "{": "}"}


class Change(NamedTuple):
    """At `start`, an offset in code points of the text before it, `removed` code points gave way to `text`."""

    start: int
    removed: int
    text: str


class Service:
    """Holds the tree of one document."""

    def __init__(self, language: str) -> None:
        self._language = language
        self._tree = SyntaxTree(language, "")

    def answer(self, request: dict[str, Any]) -> Any:
        """Takes a `text` or `changes`. Returns what stands `outside` of a window, as `Outside`, if that is requested;
        else parses, and returns the document's outline."""
        if "text" in request:
            self._tree = SyntaxTree(self._language, request["text"])
        for change in request.get("changes", ()):
            self._tree.change(Change(*change))
        if "outside" in request:
            return self._tree.outside(*request["outside"])
        self._tree.parse()
        return self._tree.outline()


class Outside(NamedTuple):
    """What was opened before one position and is open at another: brackets, outermost first, and the text around."""

    brackets: str = ""
    text: str | None = None


class SyntaxTree:
    """The tree of a text, moved with each change and parsed when there is time."""

    def __init__(self, language: str, text: str) -> None:
        grammar = load_grammar(language)
        assert isinstance(grammar, Grammar)  # who asks has it
        self._parser = tree_sitter.Parser(grammar.language)
        self._source = text.encode("utf-8", "replace")
        self._tree: tree_sitter.Tree | None = None

    @property
    def root(self) -> tree_sitter.Node | None:
        """The tree's root; None before the first parse."""
        return self._tree.root_node if self._tree else None

    def change(self, change: Change) -> None:
        """Moves what is in the tree to where a change puts it."""
        old = self._source
        start = _byte(old, change.start)
        end = start + _byte(old[start:], change.removed)
        text = change.text.encode("utf-8", "replace")
        self._source = old[:start] + text + old[end:]
        if self._tree is not None:
            new_end = start + len(text)
            self._tree.edit(start, end, new_end, _point(old, start), _point(old, end), _point(self._source, new_end))

    def parse(self) -> None:
        """Parses what changed; a text that is too long has no tree."""
        if len(self._source) > MOST_BYTES:
            self._tree = None
        elif self._tree is None:
            self._tree = self._parser.parse(self._source)
        else:
            self._tree = self._parser.parse(self._source, self._tree)

    def outline(self) -> str:
        """The heads of what the text defines."""
        return outline(self._tree.root_node, self._source) if self._tree is not None else ""

    def outside(self, tip: int, seen_from: int) -> Outside:
        """What was opened before `seen_from` and is still open at `tip`, both in bytes."""
        root = self.root
        tip = len(self._source[:tip].rstrip())
        if root is None or seen_from <= 0:
            return Outside()
        around = deque[tree_sitter.Node](maxlen=MOST_DEPTH)
        for node in nodes_around(root, max(0, tip - 1), tip):
            if node.start_byte >= seen_from:
                break
            around.append(node)
        brackets = "".join(_opener(node, tip, seen_from) for node in around)
        return Outside(brackets, _kind_of_text(around, tip))


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


def _kind_of_text(around: Sequence[tree_sitter.Node], tip: int) -> Context | None:
    """Which kind of text the innermost node that is one and reaches to the tip is; None for code."""
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
    """Where a character begins."""
    if source.isascii():
        return offset
    return len(source.decode("utf-8", "replace")[:offset].encode())


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - (source.rfind(b"\n", 0, offset) + 1)
