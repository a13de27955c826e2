"""Outline a file: list its definitions without bodies, so that a model knows an import's names, types and parameters.

An outline has a block for each top-level definition: the head of a function, or the head of a class with its
fields, constants and the heads of its methods. Small types are shown in full. The node types and field names are those
that most grammars share.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.grammar import load_grammar

from codespec.api.types import Snippet
from codespec.exclusions.secrets import without_secrets
from codespec.files import read_regular

MAX_FILE = 128 << 10  # bytes of a file to outline
MAX_OUTLINE = 2048  # characters of an outline in a prompt
MAX_BLOCKS = 16_384  # characters of a whole outline
MAX_CHILDREN = 400  # children of one node that are searched
MAX_HEAD = 240  # bytes of one head
MAX_MEMBER = 120  # bytes of a field or constant with its value
MAX_WHOLE = 400  # bytes of a type that is shown in full
MAX_AROUND = 4  # nested nodes around definitions
_WRAPPED = ("definition", "declaration")  # fields of the definition inside a decorator or an export
_NO_DEFINITIONS = ("statement", "loop", "expression")
_TYPES = ("struct", "interface", "enum", "type", "record")
_AROUND = ("preproc_if", "linkage_specification", "namespace_definition", "ambient_declaration")  # wrap definitions
_PROTOTYPES = ("function_signature", "method_signature", "abstract_method_signature", "method_elem")
_DECLARATIONS = ("declaration", "field_declaration")  # may be prototypes in C
_HOLD_MEMBERS = ("class", "impl", "trait", "object", "module", "namespace", *_TYPES)
_FIELDS = frozenset(
    (
        *("field_declaration", "field_definition", "public_field_definition", "property_signature"),
        *("property_declaration", "enum_variant", "enum_constant", "enum_member_declaration", "enum_assignment"),
        *("enumerator", "enum_entry", "const_declaration", "const_item", "assignment", "property_identifier"),
    )
)
_CONSTANTS = frozenset(
    (
        *("const_item", "static_item", "const_declaration", "var_declaration", "property_declaration", "assignment"),
        *("type_definition", "alias_declaration", "type_alias_statement", "preproc_def"),
    )
)
_LISTS = ("const_declaration", "var_declaration")  # Go's, shown on several lines
_NAMED = ("name", "declarator", "left", "type")  # fields that lead to a definition's name
_BODIES = ("_body", "field_declaration_list")
_WORD = re.compile(r"[^\W\d]\w*")
_PRIVATE = re.compile(r"\s*(?:private\b|#|_)")
_ATTRIBUTE = re.compile(r"self\.[A-Za-z]\w*\s*[:=]")


class Block(NamedTuple):
    """A definition at the top level of a file: the definition's name or "", and its outline as whole lines."""

    name: str
    text: str


Outline = Sequence[Block]


class OutlineService:
    """Outlines files on disk in a worker process, without checking whether they may be sent."""

    SECONDS = 2.0  # CPU time
    MEMORY = 256 << 20

    def __init__(self, language: str) -> None:
        """Ignore the language, because `answer` determines the language from each file's name."""

    def answer(self, path: str) -> Outline:
        return read_outline(Path(path))


def read_outline(path: Path) -> Outline:
    """Return the outline of a file, empty if the file can't be read, is too long, or has no known language."""
    language = find_language(path=str(path))
    grammar = load_grammar(language) if language else None
    if grammar is None:
        return []
    try:
        source = without_secrets(read_regular(path, MAX_FILE).decode("utf-8", "replace")).encode()
    except (OSError, ValueError):
        return []
    return [] if b"\0" in source else outline(tree_sitter.Parser(grammar.language).parse(source).root_node, source)


def split(blocks: Outline, wanted: Container[str]) -> tuple[str, str]:
    """Return two texts, each up to MAX_OUTLINE long: the `wanted` blocks with blocks they mention, and the rest."""
    first = [block.name in wanted for block in blocks]
    mentioned = set(_WORD.findall("".join(block.text for block in blocks if block.name in wanted)))
    taken = [chosen or block.name in mentioned for block, chosen in zip(blocks, first, strict=True)]
    return _joined(blocks, taken, first), _joined(blocks, [not each for each in taken], first)


def split_all(
    outlines: Sequence[tuple[str, Outline]], names: Container[str], type_name: str
) -> tuple[list[Snippet], list[Snippet]]:
    """Split files' outlines into wanted and other snippets. A file that defines the type `type_name` comes first."""
    ordered = sorted(outlines, key=lambda each: not type_name or all(block.name != type_name for block in each[1]))
    parts = [(path, split(blocks, names)) for path, blocks in ordered]
    wanted, others = ([Snippet(path, texts[part]) for path, texts in parts if texts[part]] for part in (0, 1))
    return wanted, others


def _joined(blocks: Outline, taken: Sequence[bool], first: Sequence[bool]) -> str:
    """Join the `taken` blocks that fit into MAX_OUTLINE characters, preferring the `first` blocks."""
    left, kept = MAX_OUTLINE, set[int]()
    for index in sorted(range(len(blocks)), key=lambda index: not first[index]):
        if taken[index] and len(blocks[index].text) <= left:
            left -= len(blocks[index].text)
            kept.add(index)
    return "".join(block.text for index, block in enumerate(blocks) if index in kept)


def outline(root: tree_sitter.Node, source: bytes) -> Outline:
    """Return the blocks of a file, up to MAX_BLOCKS characters in total."""
    blocks, left = list[Block](), MAX_BLOCKS
    for name, lines in _definitions(root, source):
        text = "".join(f"{line}\n" for line in lines)[:MAX_OUTLINE]
        text = text[: text.rfind("\n") + 1]
        left -= len(text)
        if left < 0:
            break
        blocks.append(Block(name, text))
    return blocks


def _definitions(parent: tree_sitter.Node, source: bytes, around: int = 0) -> Iterator[tuple[str, list[str]]]:
    for child in _children(parent):
        node = _unwrapped(child)
        if node.type.startswith(_AROUND) and around < MAX_AROUND:
            yield from _definitions(_body(node) or node, source, around + 1)
        elif lines := _head(child, node, source) or _constant(child, node, source):
            yield _name(node), lines


def _children(parent: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    for index in range(min(parent.named_child_count, MAX_CHILDREN)):
        child = parent.named_child(index)
        if child is not None:
            yield child


def _head(child: tree_sitter.Node, node: tree_sitter.Node, source: bytes, *, deep: bool = False) -> list[str]:
    """Return the lines of the definition `node`, whose decorators are in `child`, or [] for other nodes.

    The members of a nested definition (`deep`) are left out.
    """
    end = _end_of_prototype(node)
    if end:
        return [_text(source, child.start_byte, end, MAX_HEAD)]
    if not _is_definition(node):
        return []
    decorated = "decorated" in child.type or _is_type(child)
    start, body = child.start_byte if decorated else node.start_byte, _body(node)
    if body is None or (_is_type(node) and node.end_byte - node.start_byte <= MAX_WHOLE):
        return [_text(source, start, node.end_byte, MAX_WHOLE)]
    lines = [_text(source, start, body.start_byte, MAX_HEAD)]
    if not deep and any(word in node.type for word in _HOLD_MEMBERS):
        lines += _members(body, source)
    return lines


def _members(body: tree_sitter.Node, source: bytes) -> Iterator[str]:
    """Yield the lines of a type's members: public fields, constants, and the heads of methods."""
    for child in _children(body):
        node = _unwrapped(child)
        if node.type == "expression_statement" and node.named_child_count == 1:
            node = node.named_child(0) or node
        lines = _head(child, node, source, deep=True)
        attribute = node.type == "call" and source[node.start_byte :].startswith(b"attr_")  # in Ruby
        if not lines and (node.type in _FIELDS or attribute):
            field = _value(source, node)
            lines = [] if _PRIVATE.match(field) else [field]
        yield from lines
        if _name(node) == "__init__":
            yield from _attributes(node, source)


def _attributes(function: tree_sitter.Node, source: bytes) -> Iterator[str]:
    """Yield the attributes that a Python constructor sets."""
    body = _body(function)
    for child in _children(body) if body is not None else ():
        if _ATTRIBUTE.match(source[child.start_byte : child.start_byte + MAX_MEMBER].decode("utf-8", "ignore")):
            yield _value(source, child)


def _constant(child: tree_sitter.Node, node: tree_sitter.Node, source: bytes) -> list[str]:
    """Return a constant or an alias at the top level of a file, or []. JavaScript constants count only if exported."""
    if node.has_error:
        return []
    if node.type == "expression_statement" and node.named_child_count == 1:
        node = node.named_child(0) or node
        if node.type == "assignment" and not _name(node)[:1].isupper():
            return []
    if node.type == "preproc_def" and node.child_by_field_name("value") is None:
        return []
    exported = node.type == "lexical_declaration" and child.type == "export_statement"
    return [_value(source, child)] if exported or node.type in _CONSTANTS else []


def _value(source: bytes, node: tree_sitter.Node) -> str:
    """Return the source of a field or constant, shortened if the source is long or has several lines."""
    size = node.end_byte - node.start_byte
    text = _text(source, node.start_byte, node.end_byte, MAX_WHOLE)
    if size <= MAX_WHOLE and (node.type in _LISTS or (size <= MAX_MEMBER and "\n" not in text)):
        return text
    return text.partition("\n")[0][:MAX_MEMBER].rstrip() + " ..."


def _unwrapped(node: tree_sitter.Node) -> tree_sitter.Node:
    """Return the definition inside a decorator, an export or a Go `type` declaration, else the node itself."""
    for field in _WRAPPED:
        inner = node.child_by_field_name(field)
        if inner is not None:
            return inner
    only = node.named_child(0) if node.named_child_count == 1 and node.type == "type_declaration" else None
    return only if only is not None and only.child_by_field_name("name") is not None else node


def _body(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """Return the body of a definition, which has no field name in Kotlin and is part of the type in Go."""
    body = node.child_by_field_name("body")
    if body is not None:
        return body
    defined = node.child_by_field_name("type") if node.type == "type_spec" else None
    if defined is not None and defined.type == "interface_type":
        return defined
    owner = defined or node
    last = owner.named_child(owner.named_child_count - 1) if owner.named_child_count else None
    return last if last is not None and last.type.endswith(_BODIES) else None


def _name(node: tree_sitter.Node) -> str:
    only: tree_sitter.Node | None = node
    while only is not None and only.named_child_count:
        fields = (only.child_by_field_name(field) for field in _NAMED)
        others = (each for each in _children(only) if each.type != "modifiers")
        only = next((each for each in (*fields, *others) if each is not None), None)
    return (only.text or b"").decode("utf-8", "ignore") if only is not None else ""


def _end_of_prototype(node: tree_sitter.Node) -> int:
    """Return the end of a function prototype, or of the head of a function assigned to a name, or 0 for other nodes."""
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
    return named and (_body(node) is not None or _is_type(node) or node.type == "class_declaration")


def _is_type(node: tree_sitter.Node) -> bool:
    return any(word in node.type for word in _TYPES)


def _text(source: bytes, start: int, end: int, most: int) -> str:
    """Return a piece of the source with the indentation of its first line."""
    line = source.rfind(b"\n", 0, start) + 1
    indent = source[line:start] if not source[line:start].strip() else b""
    piece = source[start : min(end, start + most)].rstrip()
    return (indent + piece).decode("utf-8", "ignore")
