"""Where the statement around the tip begins, whether it is still a head, and whether a finished line is all of it."""

from __future__ import annotations

import re

from codespec_grammars.lexer import Entry, LexState
from codespec_grammars.lexer_rules import BRACKET, COMMENT, LexerRules

_BRACKETS = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
# The end of a head such as Python's, if more follows it on the line.
_ENDED = re.compile(rb":\s+\S")
# Decorators, annotations and the like, alone on their line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


def word_before(text: bytes, tip: int) -> bytes:
    """The word that ends at the tip, b"" where none does."""
    start = tip
    while start > 0 and tip - start < 64 and is_word(text[start - 1]):
        start -= 1
    return text[start:tip]


def is_word(byte: int) -> bool:
    """Whether the byte is part of a word: ASCII letters, digits, `_` and all of UTF-8's others."""
    return byte >= 0x80 or byte == 0x5F or 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


def statement_start(text: bytes, tip: int, stack: tuple[Entry, ...]) -> int:
    """The start of the line on which the statement begins, or the position behind the block's opener or a `;` on it."""
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


def introduces(line: bytes, rules: LexerRules) -> bool:
    """Whether the line only says something about the statement after it: a comment, a decorator."""
    line = line.strip()
    comments = (*rules.line_comments, *(opener.open for opener in rules.openers.values() if opener.sort == COMMENT))
    return line.startswith(comments) or _ATTRIBUTE.match(line) is not None


def dangles(line: bytes) -> bool:
    """Whether the line ends in something that must be followed by more, however deep the next line is."""
    return _DANGLING.search(line) is not None


def is_whole(line: bytes, rules: LexerRules) -> bool:
    """Whether a statement of this one line can't go on below, if nothing is open at its end. Said only where it is
    sure: other lines show it by what follows."""
    if not line.strip() or dangles(line) or introduces(line, rules):
        return False
    if rules.heads is not None:
        return rules.heads.match(line) is None
    return line.rstrip().endswith(b";") and _MAY_GO_ON.match(line) is None
