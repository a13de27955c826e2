"""Find the statement around the tip, tell heads and whole statements apart, and predict the next statement's indent.

Uses lines, open brackets and block openers, not a syntax tree. Indents are counted in characters of white space, so a
tab counts as one.
"""

from __future__ import annotations

import re
from itertools import pairwise

from codespec_grammars.language import Language
from codespec_grammars.lexer import LexState, indent_end
from codespec_grammars.lexer_rules import BRACKET, COMMENT, Entry, LexerRules

_BRACKETS = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
# The end of a head such as Python's, followed by code on the same line.
_ENDED = re.compile(rb":\s+\S")
# Decorators, annotations and the like, alone on their line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


def word_before(text: bytes) -> bytes:
    """Return the word that ends the text, or b""."""
    start = len(text)
    while start > 0 and len(text) - start < 64 and is_word(text[start - 1]):
        start -= 1
    return text[start:]


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


def begins_with(words: re.Pattern[bytes], text: bytes, state: LexState, colon: bool) -> bool:
    """Return whether the statement begins with one of the words and the text ends in its head.

    `colon`: a colon ends the head.
    """
    start = statement_start(text, len(text), state.stack)
    if words.match(text, start) is None:
        return False
    if not colon:
        return True
    head = text[start:]
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
        return rules.heads.match(line) is None and not line.rstrip().endswith(b":")  # a head may begin above
    return line.rstrip().endswith(b";") and _MAY_GO_ON.match(line) is None


LOOKED_AT = 1536  # bytes before the tip from which the indent unit is inferred
_INDENTED = re.compile(rb"^([ \t]+)[^\s]", re.M)


def indent_unit(data: Language, text: bytes) -> int:
    """Return the columns of one indent level: as used in the last lines, else the language's default."""
    indents = _INDENTED.findall(text, max(0, len(text) - LOOKED_AT))
    if data.indent == "0":
        return 0
    tabs = sum(white[:1] == b"\t" for white in indents)
    if tabs * 2 > len(indents) or (not indents and data.indent == "tab"):
        return 1
    widths = [0, *(len(white) for white in indents if white[:1] == b" ")]
    steps = [later - earlier for earlier, later in pairwise(widths) if 1 < later - earlier <= 8]
    if steps:
        return min(set(steps), key=lambda step: (-steps.count(step), step))
    return 4 if data.indent == "tab" else int(data.indent)


def expected_indent(rules: LexerRules, text: bytes, state: LexState, opens_block: bool) -> int:
    """Return the indent of the next statement.

    It is one level more after an opened block or bracket, else the indent of the line where the last statement began.
    """
    end = _last_code(rules.data, text)
    if end == 0:
        return 0
    start = text.rfind(b"\n", 0, end) + 1
    closed, opened = state.closed
    below = text.find(b"\n", start)
    first = start  # of the line with the opening bracket, if this one closes it
    if 0 <= opened < start <= closed and (below < 0 or closed < below):
        first = text.rfind(b"\n", 0, opened) + 1
    indent = indent_end(text, first) - first
    if rules.flat and rules.flat.match(text, start, end):
        return indent
    if opens_block or _opens(rules.data, text[start:end], state, start):
        return indent + indent_unit(rules.data, text)
    return indent


def max_body_indent(rules: LexerRules, before: bytes, text: bytes, state: LexState) -> int:
    """Return the most characters of indent for the block whose head ends `text`, or -1 if it is not known.

    Known where indents alone make blocks, the head is not inside brackets, and `before`, the text before the cursor,
    shows how far the file indents. The unit of spaces is a guess: deeper by less than four columns is no mistake.
    """
    end = _last_code(rules.data, text)
    if rules.heads is None or state.stack or state.comment >= 0 or text[end - 1 : end] != b":":
        return -1
    if _INDENTED.search(before, max(0, len(before) - LOOKED_AT)) is None:
        return -1
    expected = expected_indent(rules, text, state, opens_block=False)
    return expected if indent_unit(rules.data, text) == 1 else expected + 3


def _last_code(data: Language, text: bytes) -> int:
    """Return the end of the last non-blank line, without its line comment."""
    end = len(text.rstrip())
    start = text.rfind(b"\n", 0, end) + 1
    for mark in data.line_comments:
        at = text.find(b" " + mark.encode(), start, end)
        if at >= 0 and text[start:at].strip():
            return start + len(text[start:at].rstrip())
    return end


def _opens(data: Language, line: bytes, state: LexState, start: int) -> bool:
    """Return whether the line opened a bracket or block that is still open, except inside a single-line string."""
    for opener, at in state.stack:
        if not opener.multiline:
            return False
        if at >= start and opener.sort == BRACKET:
            return True
    openers = tuple(mark.encode() for mark in data.block_openers if mark not in data.block_brackets)
    return bool(openers) and line.endswith(openers)
