"""Outline a file: the heads of functions, classes and methods without bodies, and small types in full.

Outlines of imported files show a model their names, parameters and results. Uses node types and field names that
grammars share, so it has no language-specific code. `OutlineService` runs in a process made by the fork server; it does
not check whether a file may be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.registry import Grammar, load_grammar

from codespec.regular_file import read_regular

MOST = 2048  # characters of one outline
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


def outline(root: tree_sitter.Node, source: bytes) -> str:
    """Return the heads of a file's definitions in order, or ""."""
    lines: list[str] = []
    left = MOST
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


MOST_BYTES = 128 << 10  # of one file


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
        source = read_regular(path, MOST_BYTES)
    except (OSError, ValueError):
        return ""
    text = outline(tree_sitter.Parser(grammar.language).parse(source).root_node, source)
    return "" if "\0" in text else text
