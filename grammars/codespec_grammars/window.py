"""Which bytes around the tip are looked at. Knows bounds in bytes and lines; knows no language. Each bound is a
function of the text alone, so that a tracker that followed the text and a fresh one look at the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left

from codespec_grammars.lexer import Entry, Lexer
from codespec_grammars.lexer_rules import LexerRules

# Lexed before the tip: 6 to 8 KB, begun at a line; about 200 lines of code.
BEFORE, STEP, MOST_LINES = 6144, 2048, 320
# Where lines are longer than LONG_LINE on average: a line is lexed anew at each decision, so fewer bytes.
LONG_LINE, LONG_LINES, LONG_STEP = 256, 1024, 256
# Parsed before the tip: at least NEAR bytes where there is a line to begin at, never more than PARSED.
PARSED, NEAR = 1024, 192
# Parsed above that: the last so many lines that opened what is open there, where they are no longer than so.
HEADS, HEAD = 12, 160
# Parsed after the tip.
AFTER, LINES_AFTER = 512, 25
LONG_INDENT = 256


def kept_from(length: int) -> int:
    """Where the part of a prefix begins that any later window can need."""
    return max(0, (length - BEFORE) // STEP * STEP)


def window_start(rules: LexerRules, text: bytes, whole: bool) -> tuple[int, bool]:
    """The start of the window whose end is the text's, in steps of STEP, and whether a line begins there: one that
    begins an item and so is no line of a string or comment, else any; none where lines are long. `whole`: the text is
    a file from its start.
    """
    tip = len(text)
    start = kept_from(tip)
    while tip - start > STEP // 2 and text.count(b"\n", start, tip) > MOST_LINES:
        start += STEP // 4
    if text.count(b"\n", start, tip) * LONG_LINE < tip - start:
        start = max(start, (tip - LONG_LINES) // LONG_STEP * LONG_STEP)
    if start == 0 and whole:
        return 0, True
    item = next(filter(None, (anchor.search(text, start, tip - LONG_STEP) for anchor in rules.anchors)), None)
    newline = item.start() if item else text.find(b"\n", start, min(start + STEP, tip - LONG_STEP))
    return (newline + 1, True) if newline >= 0 else (start, False)


def parse_start(lexer: Lexer, tip: int, stack: tuple[Entry, ...]) -> int | None:
    """The start of the parsed part: a line around which the same is open as at the tip and that no line after it is
    indented less than. The nearest one that begins an item, else the least indented; None where none is near.
    """
    text, rules = lexer.text, lexer.rules
    opened_at, least = [pos for _, pos in stack], LONG_INDENT
    best: tuple[int, int] | None = None
    near = None
    for start, opened in reversed(lexer.lines):
        if tip - start > PARSED:
            break
        indent = _indent(text, start)
        if indent > least or indent == LONG_INDENT or text.startswith(rules.line_comments, start + indent):
            continue
        least = indent
        if opened != bisect_left(opened_at, start) or (rules.goes_on and rules.goes_on.match(text, start)):
            continue
        if tip - start < NEAR:
            near = start
        elif rules.item.match(text, start):
            return start
        elif best is None or indent < best[0]:
            best = (indent, start)
    return best[1] if best else near


def heads(lexer: Lexer, stack: tuple[Entry, ...], start: int) -> bytes:
    """What must stand before a part that begins at `start` so that it opens what is open there: the lines that did
    so, the bare openers where those are long or far up."""
    above = [entry for entry in stack if entry[1] < start]
    pieces, index = [], 0
    while index < len(above):
        line = lexer.text.rfind(b"\n", 0, max(0, above[index][1])) + 1
        end = index + 1
        while end < len(above) and above[end][1] >= 0 and lexer.text.find(b"\n", line, above[end][1]) < 0:
            end += 1
        piece = lexer.text[line : above[end - 1][1] + len(above[end - 1][0].open)]
        alone = above[index][1] >= 0 and len(piece) <= HEAD and _depth(lexer, line) == index
        bare = b" ".join(opener.open for opener, _ in above[index:end])
        pieces.append(piece if alone and len(above) - index <= HEADS else bare)
        index = end
    return b"".join(piece + b"\n" for piece in pieces)


def _depth(lexer: Lexer, line: int) -> int:
    """How many things are open where a line of code begins, -1 where it begins in a text."""
    at = bisect_left(lexer.lines, (line, 0))
    return lexer.lines[at][1] if at < len(lexer.lines) and lexer.lines[at][0] == line else -1


def _indent(text: bytes, start: int) -> int:
    """Columns of white space at a line's start; a blank line above the tip counts as deep."""
    line = text[start : start + LONG_INDENT]
    shown = line.lstrip(b" \t")
    return LONG_INDENT if shown[:1] in (b"\n", b"\r") else len(line) - len(shown)


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
