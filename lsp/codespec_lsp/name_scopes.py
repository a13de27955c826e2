"""Find where a name means the same as at a renamed place: the same binding, or the same member of a class.

Occurrences are found as text; only these are looked up in the tree. Facts about a language's bindings and scopes come
from its `names.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tree_sitter
from codespec_grammars.names import NameFacts

Kind = Literal["local", "member", "module", "import", "free"]
MAX_OCCURRENCES = 1000  # of the old and the new name; more are not looked up
_WORD = rb"\w$\x80-\xff"
_FIRST_WORD = re.compile(rb"\w+")
_RECEIVER = re.compile(rb"\(\s*(\w+)\s+\*?\s*(\w+)")


class SameName(NamedTuple):
    """The other places of a renamed name, as byte offsets.

    `kind` is where the name is bound: in a function, in a class, at the top of the file, by an import, or nowhere in
    the file. `declared` is set if a renamed place binds it. `bindings` is the number of other places that bind it to
    a value of its own: not to its own value with an operator, as in `w = w + 1`. A renamed one made from the old name
    counts, too.
    """

    kind: Kind
    declared: bool
    bindings: int
    starts: list[int]
    shorthands: list[int]  # the places that are a key as well, as in JavaScript's `{ w }`


class _Scope(NamedTuple):
    key: str | int  # a node's id, or a class's name
    kind: Literal["file", "function", "class", "block"]
    in_function: bool


@dataclass(frozen=True, slots=True)
class _Name:
    """One occurrence: its scopes, the outermost first, and what it declares."""

    start: int
    scopes: Sequence[_Scope]
    binds: _Scope | None = None
    imported: bool = False
    unbound: bool = False
    member_of: str | int | None = None
    shorthand: bool = False
    declares: bool = False
    value: tuple[int, int] = (0, 0)  # the bytes of the value that it is bound to
    adds: bool = False  # whether an operator makes that value


class Step(NamedTuple):
    """A node on the way from the root to a name, and the names of its slot."""

    node: tree_sitter.Node
    slots: Collection[str]


def find_same_name(
    root: tree_sitter.Node, source: bytes, facts: NameFacts, old: str, new: str, renamed: Collection[int]
) -> SameName | None:
    """Return the places of `old` that mean what `new` means at the `renamed` places, which are byte offsets.

    None if these differ in meaning, are not names, or if `new` has another meaning where it would be written.
    """
    reader = _Reader(root, source, facts)
    others, taken = list(_occurrences(source, old)), [at for at in _occurrences(source, new) if at not in renamed]
    if len(others) + len(taken) > MAX_OCCURRENCES:
        return None
    own = [reader.read(start, len(new.encode())) for start in renamed]
    names = [name for name in own if name is not None]
    if not names or len(names) < len(own):
        return None
    olds = [name for start in others if (name := reader.read(start, len(old.encode())))]
    news = [name for start in taken if (name := reader.read(start, len(new.encode())))]
    meanings = _Meanings([*names, *olds], facts)
    meaning = meanings.of(names[0])
    if any(meanings.of(name) != meaning for name in names) or _is_taken(meaning, names, news, facts):
        return None
    same = [name for name in olds if meanings.of(name) == meaning]
    starts, shorthands = ([name.start for name in same if name.shorthand is kind] for kind in (False, True))
    return SameName(
        meanings.kind(meaning),
        any(name.declares for name in names),
        sum(name.declares and (facts.redeclares or not (name.adds and _uses(name, [*names, *same]))) for name in same)
        + sum(_uses(name, olds) for name in names),
        starts,
        shorthands,
    )


class _Meaning(NamedTuple):
    """What a name stands for: a binding of a scope, a member of a class, or neither."""

    scope: str | int | None
    is_member: bool = False


class _Meanings:
    """Resolves occurrences of one name."""

    def __init__(self, names: Sequence[_Name], facts: NameFacts) -> None:
        self._facts, self._names = facts, names
        unbound = {name.scopes[-1].key for name in names if name.unbound}
        self._bound = {name.binds.key for name in names if name.binds is not None} - unbound
        if facts.bare_members:
            self._bound |= {name.member_of for name in names if name.member_of is not None}

    def of(self, name: _Name) -> _Meaning:
        """Return an occurrence's meaning by its innermost scope that binds the name."""
        if name.member_of is not None:
            return _Meaning(name.member_of, is_member=True)
        for scope in reversed(name.scopes):
            visible = scope.kind != "class" or self._facts.bare_members or scope is name.scopes[-1]
            if visible and scope.key in self._bound:
                return _Meaning(scope.key, scope.kind == "class")
        return _Meaning(None)

    def kind(self, meaning: _Meaning) -> Kind:
        """Return where a meaning is bound."""
        if meaning.is_member:
            return "member"
        if meaning.scope is None:
            return "free"
        same = [name for name in self._names if self.of(name) == meaning]
        if any(name.imported for name in same):
            return "import"
        scope = next(scope for name in same for scope in name.scopes if scope.key == meaning.scope)
        return "local" if scope.in_function else "module"


def _uses(binding: _Name, uses: Sequence[_Name]) -> bool:
    """Return whether the value that a name is bound to is made from one of `uses`."""
    start, end = binding.value
    return any(start <= use.start < end and len(use.scopes) == len(binding.scopes) for use in uses)


def _is_taken(meaning: _Meaning, renamed: Sequence[_Name], news: Sequence[_Name], facts: NameFacts) -> bool:
    """Return whether the new name has another meaning in the scope, or at a renamed use."""
    meanings = _Meanings(news, facts)
    if meaning.is_member:
        return any(meanings.of(name) == meaning for name in news)
    if all(name.binds is None for name in renamed) and any(meanings.of(name).scope is not None for name in renamed):
        return True  # the use refers to something else now
    plain = [name for name in news if name.member_of is None]
    return any(meaning.scope in (None, *(scope.key for scope in name.scopes)) for name in plain)


def _occurrences(source: bytes, name: str) -> Iterator[int]:
    word = re.escape(name.encode())
    for match in re.finditer(rb"(?<![%b])%b(?![%b])" % (_WORD, word, _WORD), source):
        yield match.start()


class _Reader:
    """Reads occurrences from one tree."""

    def __init__(self, root: tree_sitter.Node, source: bytes, facts: NameFacts) -> None:
        self._root, self._source, self._facts = root, source, facts

    def read(self, start: int, length: int) -> _Name | None:
        """Return the name at a place, or None for text, keys, other objects' members and broken code."""
        facts, steps = self._facts, list(descend(self._root, start))
        leaf = steps[-1].node
        at = leaf.start_byte + self._source.startswith(b"#", leaf.start_byte)
        if (at, leaf.end_byte) != (start, start + length) or any(step.node.is_error for step in steps):
            return None
        is_member = leaf.type in facts.member_names
        if not is_member and leaf.type not in facts.names and leaf.type not in facts.shorthands:
            return None
        scopes, owner, selves = self._around(steps)
        bound = _bound(steps, facts)
        if bound is None:
            return None
        if is_member or (self._slots(steps[-1], facts.members) and self._object(steps) is not None):
            declares = is_member and self._slots(bound, facts.declared_members)
            own = declares or (self._slots(steps[-1], facts.members) and self._object(steps) in selves)
            declares = declares or self._slots(steps[-2], facts.bindings)
            return _Name(start, scopes, member_of=owner, declares=declares) if own and owner is not None else None
        binds = None
        if self._slots(bound, facts.bindings):
            binds = scopes[-1]
            if steps[max(0, steps.index(bound) - 2)].node.type in facts.hoisted:
                binds = next((scope for scope in reversed(scopes) if scope.kind == "function"), scopes[0])
        value = _value(steps[max(0, steps.index(bound) - 1)].node)
        unbound = any(step.node.type in facts.not_bound for step in steps[-3:])
        return _Name(
            start,
            scopes,
            binds,
            imported=self._slots(bound, facts.imports),
            unbound=unbound,
            shorthand=leaf.type in facts.shorthands or steps[-2].node.type in facts.shorthands,
            declares=binds is not None and not unbound,
            value=(value.start_byte, value.end_byte) if value is not None else (0, 0),
            adds=value is not None and "binary" in value.type,
        )

    def _around(self, steps: Sequence[Step]) -> tuple[Sequence[_Scope], str | int | None, Collection[bytes]]:
        """Return the scopes around a leaf, the class whose members it can name, and what names that class's object."""
        facts = self._facts
        scopes, selves = [_Scope(0, "file", in_function=False)], {each.encode() for each in facts.selves}
        owner: str | int | None = None
        for index, (node, slots) in enumerate(steps):
            if len(scopes) > 1 and any(slot in facts.outer for slot in slots):
                scopes.pop()
            kind, inside = node.type, scopes[-1].in_function
            if kind in facts.classes:
                owner = self._class_key(node)
                scopes.append(_Scope(owner, "class", inside))
            elif kind in facts.functions or (kind in facts.heads and not _is_head(steps, index)):
                scopes.append(_Scope(node.id, "function", in_function=True))
            elif kind in facts.blocks:
                scopes.append(_Scope(node.id, "block", inside))
            if kind in facts.receivers and (receiver := node.child_by_field_name("receiver")) is not None:
                match = _RECEIVER.match(self._source, receiver.start_byte, receiver.end_byte)
                owner, selves = (match[2].decode("utf-8", "replace"), {match[1]}) if match else (None, set())
        return scopes, owner, selves

    def _class_key(self, node: tree_sitter.Node) -> str | int:
        for field in self._facts.class_names:
            name = node.child_by_field_name(field)
            if name is not None and (match := _FIRST_WORD.search(self._source, name.start_byte, name.end_byte)):
                return match[0].decode("utf-8", "replace")
        return node.id

    def _object(self, steps: Sequence[Step]) -> bytes | None:
        """Return the text of the object before a member, or None if there is none."""
        first = steps[-2].node.named_child(0)
        if first is None or first.start_byte == steps[-1].node.start_byte:
            return None
        return self._source[first.start_byte : first.end_byte]

    @staticmethod
    def _slots(step: Step, slots: Collection[str]) -> bool:
        return any(slot in slots for slot in step.slots)


def descend(root: tree_sitter.Node, start: int) -> Iterator[Step]:
    """Yield the nodes around a byte, the root first, each with the names of its slot."""
    cursor, parent, slots = root.walk(), root, tuple[str, ...]()
    while True:
        node = cursor.node
        assert node is not None  # the cursor stands at a node
        yield Step(node, slots)
        if cursor.goto_first_child_for_byte(start) is None or cursor.node is None or cursor.node.start_byte > start:
            return
        parent, child = node, cursor.node
        slots = (parent.type, f"{parent.type}.{cursor.field_name or ''}")
        if parent.named_child_count > 1 and (first := parent.named_child(0)) is not None:
            slots = (*slots, f"{parent.type}.{'0' if first.start_byte == child.start_byte else '+'}")


def _value(binding: tree_sitter.Node) -> tree_sitter.Node | None:
    """Return the value in a binding, or None."""
    values = (binding.child_by_field_name(field) for field in ("right", "value"))
    return next((each for each in values if each is not None), None)


def _bound(steps: Sequence[Step], facts: NameFacts) -> Step | None:
    """Return the step of the pattern around a name whose slot says what it binds; None for a key."""
    for index in range(len(steps) - 1, 0, -1):
        step = steps[index]
        if any(slot in facts.keys for slot in step.slots):
            return None
        if not any(slot in facts.patterns for slot in step.slots) or any(slot in facts.bindings for slot in step.slots):
            return step
    return steps[0]


def _is_head(steps: Sequence[Step], index: int) -> bool:
    """Return whether a declarator is the head of a function, in whose scope its parameters are."""
    for above, _ in reversed(steps[:index]):
        if above.child_by_field_name("body") is not None:
            return True
        if not above.type.endswith("declarator"):
            return False
    return False
