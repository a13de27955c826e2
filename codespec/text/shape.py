"""Choose the shape of a completion at a cursor (line, statement or block), or the reason not to start one.

Uses syntax if the language has a grammar, indentation otherwise.
"""

from __future__ import annotations

import re

from codespec_grammars import Scope, Surroundings, only_closer_missing

from codespec.contract.types import Shape

_OPENERS = (b":", b"{", b"(", b"[", b",")
_CLOSERS = b")]};,"
_QUOTES = ("'", '"', "`")
_HEAD = re.compile(rb"\s*(?:if|for|switch|while|else)\b")  # a `;` in a loop head ends no statement
_CALLED = re.compile(r"!?\(|\[")  # after a name: the name is complete and is called or indexed


def resolve_scope(shape: Shape, place: Surroundings | None, before: bytes, right: bytes) -> Scope:
    """Return how much to complete.

    `before` ends with the cursor's line up to the cursor; `right` is the rest of that line. `auto` completes the line
    if there is text to the right or the cursor is in a string or comment, the block if one was just opened, else the
    statement. Without a grammar, it completes the line, or on an empty line the block.
    """
    if shape == "line":
        return Scope.LINE
    if place is None:
        return Scope.BLOCK if shape == "block" else _by_indent(before, right)
    if place.in_text:
        return Scope.LINE
    if shape == "block":
        return Scope.BLOCK
    if right.strip(_CLOSERS + b" \t") or (right.strip() and not place.opened):
        return Scope.LINE
    return Scope.BLOCK if place.opened else Scope.STATEMENT


def _by_indent(before: bytes, right: bytes) -> Scope:
    line = before.rpartition(b"\n")[2]
    if right.strip() or (line.strip() and not line.rstrip().endswith(_OPENERS)):
        return Scope.LINE
    return Scope.BLOCK


def why_not(place: Surroundings | None, before: bytes, right: bytes) -> str:
    """Return the reason not to start a completion at the cursor, as a clause, or "" if one may start."""
    left, after = before.decode("utf-8", "ignore")[-1:], right.decode("utf-8", "ignore")
    in_text = place is not None and place.in_text
    if _is_word(after[:1]):
        return "the cursor is inside a word" if _is_word(left) else "a word follows the cursor"
    if before.endswith((b")", b"]", b"}")) and not in_text:
        return "the cursor is right after a closing bracket"
    if place is None or in_text:
        return ""
    if _is_word(left) and _CALLED.match(after):
        return "the name before the cursor is complete, and its bracket follows"
    if not _is_word(left) and after[:1] in _QUOTES:
        return "a string follows the cursor"
    if _is_finished(place, before, right):
        return "the statement before the cursor is finished"
    if only_closer_missing(place):
        return "only a closing bracket is missing, and it is already to the right of the cursor"
    return ""


def _is_finished(place: Surroundings, before: bytes, right: bytes) -> bool:
    """Return whether the cursor is right after a `;` that ends a statement of a brace language (not in a loop head)."""
    if not before.endswith(b";") or right.strip() or "{" not in place.data.block_brackets or place.data.closing_words:
        return False
    brackets = place.state.brackets
    within = bool(brackets) and not brackets[-1][0].block
    return not within and _HEAD.match(place.line) is None


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
