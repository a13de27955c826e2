"""Find the start of the statement around the tip, and decide whether a line is a head or a whole statement."""

from __future__ import annotations

import re

from codespec_grammars.lexer import Entry, LexState
from codespec_grammars.lexer_rules import BRACKET, COMMENT, LexerRules

_BRACKETS = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
# The end of a head such as Python's, followed by code on the same line.
_ENDED = re.compile(rb":\s+\S")
# Decorators, annotations and the like, alone on their line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


def word_before(text: bytes, tip: int) -> bytes:
    """Return the word that ends at the tip, or b""."""
    start = tip
    while start > 0 and tip - start < 64 and is_word(text[start - 1]):
        start -= 1
    return text[start:tip]


def is_word(byte: int) -> bool:
    """Return whether the byte is part of a word: an ASCII letter, a digit, `_`, or a byte of a non-ASCII character."""
    return byte >= 0x80 or byte == 0x5F or 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


def statement_start(text: bytes, tip: int, stack: tuple[Entry, ...]) -> int:
    """Return the start of the statement: its line, or the position after a block opener or `;` on that line."""
    start, block = tip, -1
    for opener, pos in reversed(stack):
        if opener.sort == BRACKET and opener.block:
            block = pos
            break
        start = pos if pos >= 0 else start
    line = text.rfind(b"\n", 0, start) + 1
    return max(line, block + 1, text.rfind(b";", line, start) + 1)


def begins_with(words: re.Pattern[bytes], text: bytes, tip: int, state: LexState, colon: bool) -> bool:
    """Return whether the statement begins with one of the words and the tip is in its head.

    `colon`: a colon ends the head.
    """
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


def introduces(line: bytes, rules: LexerRules) -> bool:
    """Return whether the line only introduces the next statement: a comment or a decorator."""
    line = line.strip()
    comments = (*rules.line_comments, *(opener.open for opener in rules.openers.values() if opener.sort == COMMENT))
    return line.startswith(comments) or _ATTRIBUTE.match(line) is not None


def dangles(line: bytes) -> bool:
    """Return whether the line ends in an operator that the next line must continue, whatever its indent."""
    return _DANGLING.search(line) is not None


def is_whole(line: bytes, rules: LexerRules) -> bool:
    """Return whether a one-line statement can't continue below it, given that nothing is open at its end.

    Conservative: otherwise the text after the line decides.
    """
    if not line.strip() or dangles(line) or introduces(line, rules):
        return False
    if rules.heads is not None:
        return rules.heads.match(line) is None
    return line.rstrip().endswith(b";") and _MAY_GO_ON.match(line) is None
