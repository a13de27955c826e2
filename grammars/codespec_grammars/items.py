"""Decide where one item of a list ends: a parameter with its annotation or default, an argument, an element.

A model that has finished the item under way likes to go on with items of its own, which stand to the right already or
belong to another function. Only bytes up to a comma are needed to decide about that comma.
"""

from __future__ import annotations

import re

from codespec_grammars.lexer_rules import Entry
from codespec_grammars.surroundings import Surroundings

MAX_ITEM = 2048  # bytes before the cursor that may belong to the item
_PAIR = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_STRING = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'")
_NESTED = 8  # brackets in brackets
# A name with a type or a value behind it: `self, a: `, `mut a: `, `key=`, but not `a ==`, `a::`, `a =>`.
_NAMED = re.compile(rb"\s*(?:[\w.$*&@]+\s+)*[*&$@.]*[\w$]+\??\s*(?::(?![:=])|=(?![=>]))")
_NO_LIST = re.compile(rb"\b(?:for|foreach|while|if|switch|with|using|catch)\s*$")  # words before other parentheses
_LAMBDA = re.compile(rb"\blambda\b[^:]*$")
_OPENED, _CLOSED = re.compile(rb"\w<"), re.compile(rb"(?<![-=])>")  # angle brackets around types


class ItemEnd:
    """The end of the item at the cursor. `begun` is what stands of the item before the cursor."""

    def __init__(self, begun: bytes) -> None:
        self.begun = begun

    def is_own(self, written: bytes) -> bool:
        """Return whether a comma after `written`, in no bracket of its own, ends the item.

        It does not between the types in angle brackets, nor between a lambda's parameters.
        """
        item = self.begun + written
        return _LAMBDA.search(item) is None and len(_OPENED.findall(item)) <= len(_CLOSED.findall(item))


def find_item(around: Surroundings) -> ItemEnd | None:
    """Return the item that a comma ends, or None if the text may go on behind a comma.

    It ends one if another item follows on the cursor's line, and in parentheses if its name stands before the cursor:
    then the rest of it was asked for. Otherwise all further items are welcome.
    """
    brackets = around.state.brackets
    if not brackets or around.in_text or around.state.stack[-1] != brackets[-1] or brackets[-1][0].block:
        return None
    begun = _begun(around, brackets[-1])
    if begun is None:
        return None
    parentheses = brackets[-1][0].open == b"("
    named = parentheses and _NAMED.match(begun) is not None
    return ItemEnd(begun) if named or around.right.lstrip().startswith(b",") else None


def _begun(around: Surroundings, bracket: Entry) -> bytes | None:
    """Return the text of the item before the cursor, without its strings and brackets, or None if it isn't known."""
    at = bracket[1]
    if at < 0 or len(around.before) - at > MAX_ITEM or _NO_LIST.search(around.before, max(0, at - 16), at):
        return None
    text = _STRING.sub(b"", around.before[at + 1 :])
    for _ in range(_NESTED):
        text = _PAIR.sub(b"", text)
    return text.rpartition(b",")[2]
