"""Load `names.toml` files: which nodes of a language bind names, in which scopes, and which are members.

A slot is a position in a tree: `kind` is any child of such a node, `kind.field` the child in that field, `kind.` a
child in no field, `kind.0` the first of several named children and `kind.+` a later one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from codespec_grammars.language import GrammarDataError
from codespec_grammars.registry import FOLDER, find_language

FILE = "names.toml"


@dataclass(frozen=True, slots=True)
class NameFacts:
    """The names of one language: node kinds, and slots where a comment says so."""

    names: frozenset[str]  # leaves that are names
    member_names: frozenset[str] = frozenset()  # leaves that are members, unless a slot of `bindings` declares them
    shorthands: frozenset[str] = frozenset()  # leaves, or nodes of one leaf, that are a name and a key at once
    functions: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()  # other scopes of variables
    classes: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()  # scopes, unless they are the head of a function
    bindings: frozenset[str] = frozenset()  # slots
    patterns: frozenset[str] = frozenset()  # slots between a binding and its names
    imports: frozenset[str] = frozenset()  # slots that bind an imported name
    outer: frozenset[str] = frozenset()  # slots that belong to the scope around the innermost one
    hoisted: frozenset[str] = frozenset()  # declarations that bind in the function instead of the block
    not_bound: frozenset[str] = frozenset()  # statements whose names a function does not bind
    keys: frozenset[str] = frozenset()  # slots that are not the same name: labels, keyword arguments
    members: frozenset[str] = frozenset()  # slots of a member of an object, which is the sibling before it
    bare_members: bool = False  # whether a member is also written without its object
    redeclares: bool = False  # whether a second binding in a scope is another name, as Rust's `let`


@cache
def load_name_facts(language: str) -> NameFacts | None:
    """Return a language's facts, or None if it has none. Raises GrammarDataError if its file is invalid."""
    path = FOLDER / find_language(language) / FILE
    return NameFacts(**_read(path)) if path.parent != FOLDER and path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    """Return the file's fields, after those of the language that it `inherits` from."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise GrammarDataError(path, 1, str(error)) from error
    parent = table.pop("inherits", "")
    known = {item.name for item in fields(NameFacts)}
    for key in table.keys() - known:
        raise GrammarDataError(path, 1, f"unknown field {key!r}")
    own = {key: value if isinstance(value, bool) else frozenset(value) for key, value in table.items()}
    return {**(_read(path.parent.parent / parent / FILE) if parent else {}), **own}
