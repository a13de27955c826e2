"""Find the occurrences of a variable, function or import in a syntax tree, by the scope rules in `names.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tree_sitter
from codespec_grammars.language import NameFacts

MAX_OCCURRENCES = 1000  # of the old and new name together
_WORD = rb"\w$\x80-\xff"


class SameName(NamedTuple):
    """The offsets of the other occurrences of a renamed name. `kind` says where the name is bound."""

    kind: Literal["local", "module", "import"]
    starts: list[int]
    shorthands: list[int]  # places where the name is also a key, such as JavaScript's `{ w }`


class _Scope(NamedTuple):
    key: int  # a node's id
    kind: Literal["file", "function", "class", "block"]
    in_function: bool


@dataclass(frozen=True, slots=True)
class _Name:
    """An occurrence of a name in nested `scopes`. A binding occurrence also has the scope `binds`."""

    start: int
    scopes: Sequence[_Scope]
    binds: _Scope | None
    imported: bool
    unbound: bool
    shorthand: bool
    value: tuple[int, int] = (0, 0)  # byte range of the value that the name is bound to
    adds: bool = False  # whether that value is a binary expression


class _Step(NamedTuple):
    """A node on the path from the root to a name, with its position in its parent as `slots` of `names.toml`."""

    node: tree_sitter.Node
    slots: Collection[str]

    def stands_in(self, slots: Collection[str]) -> bool:
        return any(slot in slots for slot in self.slots)


def find_same_name(
    root: tree_sitter.Node, source: bytes, facts: NameFacts, old: str, new: str, renamed: Collection[int]
) -> SameName | None:
    """Return the occurrences of `old` that refer to the same binding as `new` at the `renamed` byte offsets.

    Returns None if renaming other occurrences is often wrong (lab/LOG.md): if the renamed occurrences differ in meaning
    or bind nothing; if `new` is already used in the scope; if another occurrence binds the name to a new value, except
    as in `w = w + 1`; if a renamed value is computed from the old name; or if the name is a member of a class.
    """
    others, taken = list(_occurrences(source, old)), [at for at in _occurrences(source, new) if at not in renamed]
    if len(others) + len(taken) > MAX_OCCURRENCES:
        return None
    read = [_read(root, facts, start, len(new.encode())) for start in renamed]
    names = [name for name in read if name is not None]
    if len(names) < len(read) or all(name.binds is None for name in names):
        return None
    olds = [name for start in others if (name := _read(root, facts, start, len(old.encode())))]
    news = [name for start in taken if (name := _read(root, facts, start, len(new.encode())))]
    bound = {name.binds for name in (*names, *olds)} - {name.scopes[-1] for name in (*names, *olds) if name.unbound}
    scope = _meaning(names[0], bound, facts)
    if scope is None or scope.kind == "class" or any(_meaning(name, bound, facts) != scope for name in names):
        return None
    same = [name for name in olds if _meaning(name, bound, facts) == scope]
    all_same = [*names, *same]
    again = [name for name in same if name.binds and (facts.redeclares or not (name.adds and _uses(name, all_same)))]
    if again or any(scope in name.scopes for name in news) or any(_uses(name, olds) for name in names):
        return None
    starts, shorthands = ([name.start for name in same if name.shorthand is kind] for kind in (False, True))
    is_import = any(name.imported for name in all_same)
    return SameName("import" if is_import else "local" if scope.in_function else "module", starts, shorthands)


def _occurrences(source: bytes, name: str) -> Iterator[int]:
    word = re.escape(name.encode())
    for match in re.finditer(rb"(?<![%b])%b(?![%b])" % (_WORD, word, _WORD), source):
        yield match.start()


def _meaning(name: _Name, bound: Collection[_Scope | None], facts: NameFacts) -> _Scope | None:
    """Return the innermost scope around an occurrence in which the name is bound and visible."""
    for scope in reversed(name.scopes):
        visible = scope.kind != "class" or facts.bare_members or scope is name.scopes[-1]
        if visible and scope in bound:
            return scope
    return None


def _uses(binding: _Name, uses: Sequence[_Name]) -> bool:
    """Return whether the value that a name is bound to contains one of the occurrences `uses`."""
    start, end = binding.value
    return any(start <= use.start < end and len(use.scopes) == len(binding.scopes) for use in uses)


def _read(root: tree_sitter.Node, facts: NameFacts, start: int, length: int) -> _Name | None:
    """Return the name at a byte offset, or None for text, keys, members of objects and broken code."""
    steps = list(_descend(root, start))
    leaf, bound = steps[-1].node, _bound(steps, facts)
    is_whole = (leaf.start_byte, leaf.end_byte) == (start, start + length)
    is_member = steps[-1].stands_in(facts.members) and _has_object(steps)
    if not is_whole or bound is None or is_member or any(step.node.is_error for step in steps):
        return None
    scopes, at = _scopes(steps, facts), steps.index(bound)
    binds = scopes[-1] if bound.stands_in(facts.bindings) else None
    if binds is not None and steps[max(0, at - 2)].node.type in facts.hoisted:
        binds = next((scope for scope in reversed(scopes) if scope.kind == "function"), scopes[0])
    is_shorthand = leaf.type in facts.shorthands
    if not (is_shorthand or leaf.type in facts.names or (leaf.type in facts.member_names and binds is not None)):
        return None
    binding = steps[max(0, at - 1)].node
    value = binding.child_by_field_name("right") or binding.child_by_field_name("value")
    return _Name(
        start,
        scopes,
        binds,
        imported=bound.stands_in(facts.imports),
        unbound=any(step.node.type in facts.not_bound for step in steps[-3:]),
        shorthand=is_shorthand or steps[-2].node.type in facts.shorthands,
        value=(value.start_byte, value.end_byte) if value is not None else (0, 0),
        adds=value is not None and "binary" in value.type,
    )


def _descend(root: tree_sitter.Node, start: int) -> Iterator[_Step]:
    """Yield the nodes that contain a byte, starting with the root."""
    cursor, parent, slots = root.walk(), root, tuple[str, ...]()
    while True:
        node = cursor.node
        assert node is not None  # the cursor stands at a node
        yield _Step(node, slots)
        if cursor.goto_first_child_for_byte(start) is None or cursor.node is None or cursor.node.start_byte > start:
            return
        parent, child = node, cursor.node
        slots = (parent.type, f"{parent.type}.{cursor.field_name or ''}")
        if parent.named_child_count > 1 and (first := parent.named_child(0)) is not None:
            slots = (*slots, f"{parent.type}.{'0' if first.start_byte == child.start_byte else '+'}")


def _has_object(steps: Sequence[_Step]) -> bool:
    """Return whether an object precedes a member, as in `object.member`."""
    first = steps[-2].node.named_child(0)
    return first is not None and first.start_byte != steps[-1].node.start_byte


def _bound(steps: Sequence[_Step], facts: NameFacts) -> _Step | None:
    """Return the outermost step of a pattern around a name, which decides whether the name is bound; None for a key."""
    for step in reversed(steps[1:]):
        if step.stands_in(facts.keys):
            return None
        if not step.stands_in(facts.patterns) or step.stands_in(facts.bindings):
            return step
    return steps[0]


def _scopes(steps: Sequence[_Step], facts: NameFacts) -> Sequence[_Scope]:
    scopes = [_Scope(0, "file", in_function=False)]
    for index, step in enumerate(steps):
        if len(scopes) > 1 and step.stands_in(facts.outer):
            scopes.pop()
        node, inside = step.node, scopes[-1].in_function
        if node.type in facts.classes:
            scopes.append(_Scope(node.id, "class", inside))
        elif node.type in facts.functions or (node.type in facts.heads and not _is_head(steps, index)):
            scopes.append(_Scope(node.id, "function", in_function=True))
        elif node.type in facts.blocks:
            scopes.append(_Scope(node.id, "block", inside))
    return scopes


def _is_head(steps: Sequence[_Step], index: int) -> bool:
    """Return whether a declarator is part of a function definition, whose scope then contains the parameters."""
    for above, _ in reversed(steps[:index]):
        if above.child_by_field_name("body") is not None:
            return True
        if not above.type.endswith("declarator"):
            return False
    return False
