"""Which bytes around the tip are looked at. Knows bounds in bytes and lines; knows no language. Each bound is a
function of the text alone, so that a tracker that followed the text and a fresh one look at the same bytes.
"""

from __future__ import annotations

from codespec_grammars.lexer import Lexer
from codespec_grammars.lexer_rules import LexerRules

# Lexed before the tip: 6 to 8 KB, begun at a line; about 200 lines of code.
BEFORE, STEP, MOST_LINES = 6144, 2048, 320
# Where lines are longer than LONG_LINE on average: a line is lexed anew at each decision, so fewer bytes.
LONG_LINE, LONG_LINES, LONG_STEP = 256, 1024, 256
# Parsed before the tip: the top-level item around it, or so many bytes.
PARSED, NEAR, PARSED_STEP = 4096, 256, 1024
AFTER, LINES_AFTER = 1024, 25


def kept_from(length: int) -> int:
    """Where the part of a prefix begins that any later window can need."""
    return max(0, (length - BEFORE) // STEP * STEP)


def window_start(rules: LexerRules, text: bytes, whole: bool) -> int:
    """The start of the window whose end is the text's, in steps of STEP: a line that begins an item and so is no line
    of a string or comment, else any line; mid-line where lines are longer. `whole`: the text is a file from its start.
    """
    tip = len(text)
    start = kept_from(tip)
    while tip - start > STEP // 2 and text.count(b"\n", start, tip) > MOST_LINES:
        start += STEP // 4
    if text.count(b"\n", start, tip) * LONG_LINE < tip - start:
        start = max(start, (tip - LONG_LINES) // LONG_STEP * LONG_STEP)
    if start == 0 and whole:
        return 0
    item = next(filter(None, (anchor.search(text, start, tip - LONG_STEP) for anchor in rules.anchors)), None)
    newline = item.start() if item else text.find(b"\n", start, min(start + STEP, tip - LONG_STEP))
    return newline + 1 if newline >= 0 else start


def parse_start(lexer: Lexer, tip: int, depth: int) -> int:
    """The start of the parsed part: the line that begins the item around the tip, with nothing open but the `depth`
    things that were so at the window's start; where there is none, one of the least indented lines about PARSED bytes
    away.
    """
    code = [line for line in lexer.lines if line[0] <= tip and tip - line[0] <= PARSED]
    for start, opened in reversed(code):
        if tip - start >= NEAR and opened == depth and _begins_item(lexer.rules, lexer.text, start):
            return start
    least = max(0, (tip - PARSED) // PARSED_STEP * PARSED_STEP)
    first = [start for start, _ in code if least <= start < least + PARSED_STEP]
    return min(first, key=lambda start: _indent(lexer.text, start), default=least)


def _indent(text: bytes, start: int) -> int:
    """Columns of white space at a line's start; a blank line counts as deep."""
    line = text[start : start + 256]
    shown = line.lstrip(b" \t")
    return 256 if shown[:1] in (b"\n", b"\r", b"") else len(line) - len(shown)


def suffix_window(rules: LexerRules, suffix: bytes, in_code: bool) -> bytes:
    """What is parsed after the tip: up to the next line that begins an item, at most LINES_AFTER lines."""
    suffix = suffix[:AFTER]
    start = 0
    for _ in range(LINES_AFTER):
        newline = suffix.find(b"\n", start)
        if newline < 0:
            return suffix if len(suffix) < AFTER else suffix[: start or LONG_STEP]
        start = newline + 1
        if in_code and _begins_item(rules, suffix, start):
            break
    return suffix[:start]


def _begins_item(rules: LexerRules, text: bytes, start: int) -> bool:
    return rules.item.match(text, start) is not None
