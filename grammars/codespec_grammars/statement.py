"""Where the statement around the tip begins, and whether it is still a head. Knows lexer states; knows no tree."""

from __future__ import annotations

import re

from codespec_grammars.lexer import Entry, LexState
from codespec_grammars.lexer_rules import BRACKET

_BRACKETS = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
# The end of a head such as Python's, if more follows it on the line.
_ENDED = re.compile(rb":\s+\S")


def statement_start(text: bytes, tip: int, stack: tuple[Entry, ...]) -> int:
    """The start of the line on which the statement begins, or the place after the block's opener or a `;` on it."""
    start, block = tip, -1
    for opener, pos in reversed(stack):
        if opener.sort == BRACKET and opener.block:
            block = pos
            break
        start = pos if pos >= 0 else start
    line = text.rfind(b"\n", 0, start) + 1
    return max(line, block + 1, text.rfind(b";", line, start) + 1)


def begins_with(words: re.Pattern[bytes], text: bytes, tip: int, state: LexState, colon: bool) -> bool:
    """Whether the statement begins with one of the words and the tip lies in its head, which a `colon` may end."""
    start = statement_start(text, tip, state.stack)
    if words.match(text, start, tip) is None:
        return False
    if not colon:
        return True
    head = text[start:tip]
    for _ in range(3):
        head = _BRACKETS.sub(b"", head)
    opened = min((head.find(mark) for mark in (b"(", b"[", b"{") if mark in head), default=len(head))
    return _ENDED.search(head[:opened]) is None
