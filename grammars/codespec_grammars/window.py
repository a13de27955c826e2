"""The window of bytes before the tip, lexed. Each bound is a function of the text alone, so that a tracker that has
followed the text looks at the same bytes as a fresh one.
"""

from __future__ import annotations

from bisect import bisect_left

from codespec_grammars.lexer import Entry, Lexer, LexState
from codespec_grammars.lexer_rules import BRACKET, LexerRules

# Lexed before the tip: 6 to 8 KB, begun at a line; about 200 lines of code.
BEFORE, STEP, MOST_LINES = 6144, 2048, 320
# With lines longer than LONG_LINE on average, fewer bytes: a line is lexed again at each decision.
LONG_LINE, LONG_LINES, LONG_STEP = 256, 1024, 256
# Parsed before the tip: at least NEAR bytes where there is a line to begin at, never more than PARSED.
PARSED, NEAR = 1024, 192
# Parsed above that: the last HEADS lines that opened what is open there, each of at most HEAD bytes.
HEADS, HEAD = 12, 160
# Parsed after the tip.
AFTER, LINES_AFTER = 512, 25
LONG_INDENT = 256
MOST_CHECKPOINTS = 32


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


class LexedWindow:
    """A prefix's end and what was appended. `text` and `tip` are those of the window, which begins `start` bytes into
    what is kept."""

    def __init__(self, rules: LexerRules, prefix: bytes) -> None:
        self._rules = rules
        base = kept_from(len(prefix))
        self._prefix, self._whole = prefix[base:], base == 0
        self._data = bytearray()
        self._seed: tuple[Entry, ...] = ()
        self.version = 0
        self._begin(*window_start(rules, self._prefix, self._whole))

    @property
    def appended(self) -> int:
        """How many bytes were appended."""
        return len(self._data)

    @property
    def text(self) -> bytes:
        """The window's bytes up to the tip."""
        return self.lexer.text

    @property
    def tip(self) -> int:
        """The tip's position in `text`."""
        return len(self.lexer.text)

    def begins_file(self, start: int) -> bool:
        """Whether a position in the window is the start of the whole text."""
        return self._whole and self.start + start == 0

    def seed(self, entries: tuple[Entry, ...]) -> None:
        """Starts anew with things open at the window's start."""
        self._seed = entries
        self.version += 1
        self._begin(self.start, self._at_line)

    def append(self, data: bytes) -> None:
        """Adds bytes at the tip."""
        self._data += data
        self._move()

    def cut(self, length: int) -> None:
        """Keeps the first `length` appended bytes."""
        del self._data[length:]
        self._move()
        # A checkpoint lies before a line's end, which must still be there.
        while len(self._checkpoints) > 1 and self._checkpoints[-1].pos >= self.tip:
            self._checkpoints.pop()

    def state(self) -> LexState:
        """The lexer's state at the tip. Work: the last line, and what was appended since the last checkpoint."""
        lexer, tip = self.lexer, self.tip
        last = self._checkpoints[-1]
        lexer.forget(last.pos)
        newline = lexer.text.rfind(b"\n", last.pos, tip)
        while newline > last.pos and lexer.text.endswith((b"\\", b"\\\r"), newline - 2, newline):
            newline = lexer.text.rfind(b"\n", last.pos, newline)  # a backslash and its line end are one event
        if newline > last.pos:
            last = lexer.run(last, newline)
            self._checkpoints.append(last)
            del self._checkpoints[1:-MOST_CHECKPOINTS]
        return lexer.run(last, tip)

    @property
    def checkpoint(self) -> LexState:
        """The state at the last line's end that `state` came by, from where the tip's is found again."""
        return self._checkpoints[-1]

    def _move(self) -> None:
        self.version += 1
        whole = self._prefix + self._data
        start, at_line = window_start(self._rules, whole, self._whole)
        if (start, at_line) != (self.start, self._at_line):
            self._begin(start, at_line)
        else:
            self.lexer.text = whole[start:]

    def _begin(self, start: int, at_line: bool) -> None:
        self.start, self._at_line = start, at_line
        self.lexer = Lexer(self._rules, (self._prefix + self._data)[start:])
        if at_line and not (self._seed and self._seed[-1][0].sort != BRACKET):
            self.lexer.lines.append((0, len(self._seed)))
        self._checkpoints = [LexState(stack=self._seed)]
