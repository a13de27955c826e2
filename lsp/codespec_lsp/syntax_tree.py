"""Parse whole files, in processes made by the fork server.

`TreeService` keeps the tree of an open document up to date, which gives the brackets that are open around a position
and the document's outline. `OutlineService` outlines files on disk; it does not check whether a file may be sent.

An outline holds the heads of functions, classes and methods without bodies, and small types in full. It shows a model
the names, parameters and results of an imported file. It uses node types and field names that grammars share, so it has
no language-specific code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.contexts import Context
from codespec_grammars.queries import nodes_around
from codespec_grammars.registry import Grammar, load_grammar

from codespec.regular_file import read_regular
from codespec.secret_text import without_secrets

MOST_BYTES = 4 << 20  # of a document
MOST_DEPTH = 400
FIRST_CHILDREN = 8  # children of a node that are searched for an opener
PAIRS = {"(": ")", "[": "]", "{": "}"}
MOST_FILE = 128 << 10  # bytes of a file to outline
MOST_OUTLINE = 2048  # characters
MOST_CHILDREN = 400  # searched children of one node
MOST_HEAD = 240  # bytes of one head
MOST_WHOLE = 400  # bytes of a type that is shown in full
_WRAPPED = ("definition", "declaration")  # fields for the definition inside a decorator or an export
_NO_DEFINITIONS = ("statement", "loop", "expression")
_TYPES = ("struct", "interface", "enum", "type", "record")
_AROUND = ("preproc_if", "linkage_specification", "namespace_definition", "ambient_declaration")  # wrap definitions
MOST_AROUND = 4  # nested
_PROTOTYPES = ("function_signature", "method_signature")
_DECLARATIONS = ("declaration", "field_declaration")  # in C, these may be prototypes
_HOLD_METHODS = ("class", "impl", "trait", "object", "module", "namespace", *_TYPES)


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

        If the request has `outside`, return the `Outside` of a window. Otherwise parse, from the text alone if it has
        `afresh`, and return the outline.
        """
        if "text" in request:
            self.tree = SyntaxTree(self._language, request["text"])
        for change in request.get("changes", ()):
            self.tree.change(Change(*change))
        if "outside" in request:
            return self.tree.outside(*request["outside"])
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
        assert isinstance(grammar, Grammar)  # the client checked
        self._parser = tree_sitter.Parser(grammar.language)
        self._source = text.encode("utf-8", "replace")
        self._tree: tree_sitter.Tree | None = None

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
        """Parse, incrementally or afresh. A text longer than MOST_BYTES has no tree.

        An incremental tree of broken text can differ from a fresh one, also later, when the text is whole again.
        """
        if len(self._source) > MOST_BYTES:
            self._tree = None
        elif self._tree is None or afresh:
            self._tree = self._parser.parse(self._source)
        else:
            self._tree = self._parser.parse(self._source, self._tree)

    def outline(self) -> str:
        """Return the heads of the text's definitions."""
        return outline(self._tree.root_node, self._source) if self._tree is not None else ""

    def outside(self, tip: int, seen_from: int) -> Outside:
        """Return what was opened before `seen_from` and is still open at `tip`, both byte offsets."""
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


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - (source.rfind(b"\n", 0, offset) + 1)


class OutlineService:
    """Reads the outlines of files."""

    SECONDS = 2.0  # CPU time
    MEMORY = 256 << 20

    def __init__(self, language: str) -> None:
        """Ignore the language, which is found from each file's name."""

    def answer(self, path: str) -> str:
        """Return the heads of a file's definitions."""
        return read_outline(Path(path))


def read_outline(path: Path) -> str:
    """Return the heads of a file's definitions, or "" if it can't be read, is too long, or has no known language."""
    language = find_language(path=str(path))
    grammar = load_grammar(language) if language else None
    if not isinstance(grammar, Grammar):
        return ""
    try:
        source = without_secrets(read_regular(path, MOST_FILE).decode("utf-8", "replace")).encode()
    except (OSError, ValueError):
        return ""
    text = outline(tree_sitter.Parser(grammar.language).parse(source).root_node, source)
    return "" if "\0" in text else text


def outline(root: tree_sitter.Node, source: bytes) -> str:
    """Return the heads of a file's definitions in order, or ""."""
    lines: list[str] = []
    left = MOST_OUTLINE
    for head in _heads(root, source, deep=False):
        left -= len(head) + 1
        if left < 0:
            break
        lines.append(head)
    return "".join(line + "\n" for line in lines)


def _heads(parent: tree_sitter.Node, source: bytes, *, deep: bool, around: int = 0) -> Iterator[str]:
    for index in range(min(parent.named_child_count, MOST_CHILDREN)):
        child = parent.named_child(index)
        node = _unwrapped(child) if child is not None else None
        if child is None or node is None:
            continue
        if node.type.startswith(_AROUND) and around < MOST_AROUND:
            yield from _heads(node.child_by_field_name("body") or node, source, deep=deep, around=around + 1)
            continue
        end = _end_of_prototype(node)
        if end:
            yield _text(source, child.start_byte, end, MOST_HEAD)
            continue
        if not _is_definition(node):
            continue
        start = child.start_byte if _is_type(child) else node.start_byte
        body = node.child_by_field_name("body")
        if body is None or (_is_type(node) and node.end_byte - node.start_byte <= MOST_WHOLE):
            yield _text(source, start, node.end_byte, MOST_WHOLE)
            continue
        yield _text(source, start, body.start_byte, MOST_HEAD)
        if not deep and any(word in node.type for word in _HOLD_METHODS):
            yield from _heads(body, source, deep=True)


def _unwrapped(node: tree_sitter.Node) -> tree_sitter.Node:
    """Return the definition inside a decorator, an export or Go's `type`, else the node itself."""
    for field in _WRAPPED:
        inner = node.child_by_field_name(field)
        if inner is not None:
            return inner
    only = node.named_child(0) if node.named_child_count == 1 and node.type.endswith("declaration") else None
    return only if only is not None and only.child_by_field_name("name") is not None else node


def _end_of_prototype(node: tree_sitter.Node) -> int:
    """Return the end of the head of a function prototype, or of a function assigned to a name; 0 for neither."""
    if node.has_error:
        return 0
    if node.type in _PROTOTYPES:
        return node.end_byte
    if node.type in _DECLARATIONS:
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type.endswith(("pointer_declarator", "reference_declarator")):
            declarator = declarator.child_by_field_name("declarator") or declarator.named_child(0)
        return node.end_byte if declarator is not None and declarator.type == "function_declarator" else 0
    only = node.named_child(0) if node.type == "lexical_declaration" and node.named_child_count == 1 else node
    value = only.child_by_field_name("value") if only is not None and only.type == "variable_declarator" else None
    body = value.child_by_field_name("body") if value is not None and "function" in value.type else None
    return body.start_byte if body is not None else 0


def _is_definition(node: tree_sitter.Node) -> bool:
    if node.has_error or any(word in node.type for word in _NO_DEFINITIONS):
        return False
    names = ("name", "declarator", *(("type",) if "impl" in node.type else ()))
    named = any(node.child_by_field_name(field) is not None for field in names)
    return named and (node.child_by_field_name("body") is not None or _is_type(node))


def _is_type(node: tree_sitter.Node) -> bool:
    return any(word in node.type for word in _TYPES)


def _text(source: bytes, start: int, end: int, most: int) -> str:
    """Return a piece of the source with its line's indentation."""
    line = source.rfind(b"\n", 0, start) + 1
    indent = source[line:start] if not source[line:start].strip() else b""
    piece = source[start : min(end, start + most)].rstrip()
    return (indent + piece).decode("utf-8", "ignore")
