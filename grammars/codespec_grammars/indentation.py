"""Predict the indent of the next statement from lines, open brackets and block openers, without a syntax tree.

Columns are characters of white space; a tab counts as one.
"""

from __future__ import annotations

import re
from itertools import pairwise

from codespec_grammars.language import Language
from codespec_grammars.lexer import LexState
from codespec_grammars.lexer_rules import BRACKET, LexerRules

LOOKED_AT = 1536  # bytes before the tip from which the indent unit is inferred
_INDENTED = re.compile(rb"^([ \t]+)[^\s]", re.M)


def indent_unit(data: Language, text: bytes) -> int:
    """Return the columns of one indent level: as used in the last lines, else the language's default."""
    found = _INDENTED.findall(text, max(0, len(text) - LOOKED_AT))
    if data.indent == "0":
        return 0
    tabs = sum(white[:1] == b"\t" for white in found)
    if tabs * 2 > len(found) or (not found and data.indent == "tab"):
        return 1
    widths = [0, *(len(white) for white in found if white[:1] == b" ")]
    steps = [later - earlier for earlier, later in pairwise(widths) if 1 < later - earlier <= 8]
    if steps:
        return min(set(steps), key=lambda step: (-steps.count(step), step))
    return 4 if data.indent == "tab" else int(data.indent)


def expected_indent(
    data: Language, rules: LexerRules, text: bytes, tip: int, state: LexState, opens_block: bool
) -> int:
    """Return the indent of the next statement.

    It is one level more after an opened block or bracket, else the indent of the line where the last statement began.
    """
    end = _last_code(data, text, tip)
    if end == 0:
        return 0
    start = text.rfind(b"\n", 0, end) + 1
    indent = _width(text, _statement_line(text, start, state))
    if rules.flat and rules.flat.match(text, start, end):
        return indent
    if opens_block or _opens(data, text[start:end], state, start):
        return indent + indent_unit(data, text)
    return indent


def _last_code(data: Language, text: bytes, tip: int) -> int:
    """Return the end of the last non-blank line up to the tip, without its line comment."""
    end = len(text[:tip].rstrip())
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


def _statement_line(text: bytes, start: int, state: LexState) -> int:
    """Return the start of the opening bracket's line if the line at `start` closes that bracket, else `start`."""
    closed, opened = state.closed
    end = text.find(b"\n", start)
    if 0 <= opened < start <= closed and (end < 0 or closed < end):
        return text.rfind(b"\n", 0, opened) + 1
    return start


def _width(text: bytes, start: int) -> int:
    end = start
    while text[end : end + 1] in (b" ", b"\t"):
        end += 1
    return end - start
