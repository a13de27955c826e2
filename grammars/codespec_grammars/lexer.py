"""A left-to-right lexer that tracks open brackets, strings and comments, without a grammar.

The lexer's state at a position depends only on the bytes before that position, so incremental and fresh runs give the
same state. For a long text, only a window of the last 6 to 8 KB is lexed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from codespec_grammars.lexer_rules import (
    BRACKET,
    COMMENT,
    PAIRS,
    Entry,
    LexerRules,
    Opener,
    heredoc_opener,
    indented_opener,
    literal_opener,
)

LITERAL_BEFORE = 64  # bytes of a line before a literal that decide whether it is one
# Minimum bytes of a window, and steps by which its start moves; maximum lines. The window has about 200 lines of code.
BEFORE, STEP, MAX_LINES = 6144, 2048, 320
# If lines are longer than LONG_LINE on average, the window is smaller, because each decision lexes the last line again.
LONG_LINE, LONG_LINES, LONG_STEP = 256, 1024, 256
_SKIPPED = frozenset({"atom", "flat", "escape"})
# A decorator, annotation or attribute alone on its line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


@dataclass(frozen=True, slots=True)
class LexState:
    """The lexer state at byte `pos`."""

    pos: int = 0
    stack: tuple[Entry, ...] = ()  # open brackets, strings and comments, outermost first
    closed: tuple[int, int] = (-1, -1)  # positions of the closing and opening bracket of the last closed pair
    pending: tuple[Opener, ...] = ()  # openers of heredocs that begin on the next line
    comment: int = -1  # start of the line comment around `pos`, or -1

    @property
    def brackets(self) -> tuple[Entry, ...]:
        """The open brackets, outermost first."""
        return tuple(entry for entry in self.stack if entry[0].sort == BRACKET)


class Lexer:
    """An incremental lexer for a single text."""

    def __init__(self, rules: LexerRules, text: bytes) -> None:
        self.rules, self.text = rules, text
        self.lines: list[tuple[int, int]] = []  # start of each line that begins in code, and number of open entries
        self.dropped: list[Entry] = []  # brackets and strings that ended without a closing delimiter
        self.repairs: list[tuple[int, bytes]] = []  # positions and texts of missing closing delimiters

    def run(self, state: LexState, end: int) -> LexState:
        """Lex from `state.pos` to byte `end`. Returns the state at `end`."""
        self._stack = list(state.stack)
        self._closed, self._pending, self._comment = state.closed, list(state.pending), -1
        pos, text, stack, code = state.pos, self.text, self._stack, self.rules.code
        while pos < end:
            inside = stack[-1][0].inside if stack else None
            match = (inside or code).search(text, pos, end)
            if match is None:
                break
            group = match.lastgroup
            assert group is not None
            pos = match.end(group)
            if group == "literal":
                pos = self._literal(match)
            elif group not in _SKIPPED:
                self._event(match, group, inside is not None, end)
        return LexState(end, tuple(self._stack), self._closed, tuple(self._pending), self._comment)

    def forget(self, pos: int) -> None:
        """Clear `dropped`, and discard the lines and repairs after `pos`, which lexing from `pos` will find again."""
        while self.lines and self.lines[-1][0] > pos:
            self.lines.pop()
        while self.repairs and self.repairs[-1][0] >= pos:
            self.repairs.pop()
        self.dropped.clear()

    def _event(self, match: re.Match[bytes], group: str, inside: bool, end: int) -> None:
        if group == "open" or group == "long":
            self._open(match[group], match.start())
        elif group == "nest":
            self._stack.append((self._stack[-1][0], match.start()))
        elif group == "leave":
            self._drop(len(self._stack) - 1, match.start())
            self.lines.append((match.end(), len(self._stack)))
        elif group == "indented":
            self._pending.append(indented_opener(self._indent(match)))
        elif group == "close" and inside:
            self._stack.pop()
        elif group == "close":
            self._close(match[group], match.start())
        elif group == "line":
            self._line(match.end(group))
        elif group == "end":
            self._drop(len(self._stack) - 1, match.start())
            if not self._stack or self._stack[-1][0].inside is None:
                self._line(match.end())
        elif group == "comment" and match.end(group) == end:
            self._comment = match.start()
        elif group == "heredoc" and not self._in_arithmetic():
            self._pending.append(heredoc_opener(self._heredoc_word(match), self.rules.data.heredoc_rest.encode()))

    def _open(self, mark: bytes, pos: int) -> None:
        opener, innermost = self._opener(mark, pos), len(self._stack) - 1
        while opener.open == opener.close and innermost >= 0 and self._stack[innermost][0].sort == BRACKET:
            if self._stack[innermost][0] is opener:
                self._close(mark, pos)
                return
            innermost -= 1
        self._stack.append((opener, pos))

    def _literal(self, match: re.Match[bytes]) -> int:
        """Begin a literal at a match if a literal rule applies, and return the position from which to continue."""
        start, text = match.start(), self.text
        line = text[max(text.rfind(b"\n", 0, start) + 1, start - LITERAL_BEFORE) : start]
        innermost = self._stack[-1][0].open if self._stack else b""
        for each in self.rules.literals:
            found = each.pattern.match(text, start, match.endpos)
            if found is None or (each.rule.within and each.rule.within.encode() != innermost):
                continue
            if each.before.search(line):
                group = found[1] or b"" if each.pattern.groups else b""
                columns = self._indent(found) if each.rule.indented else 0
                opener = literal_opener(each.rule, found.group(), group.decode("latin-1"), columns)
                self._stack.append((opener, start))
                return found.end()
        plain = self.rules.openers.get(text[start : start + 1])
        if plain is not None:
            self._stack.append((plain, start))
        return start + 1

    def _indent(self, match: re.Match[bytes]) -> int:
        """Return the indent in columns that a line must exceed to belong to an indented text or literal."""
        start = self.text.rfind(b"\n", 0, match.start()) + 1
        parent = self.rules.indented_parent.match(self.text, start)
        return parent.end() - start if parent else 0

    def _in_arithmetic(self) -> bool:
        """Return whether the position is in an arithmetic expression, after adjacent opening brackets such as `((`."""
        mark = self.rules.data.arithmetic
        if not mark:
            return False
        close = PAIRS[mark[-1]].encode()
        opened = [pos for opener, pos in self._stack if opener.sort == BRACKET and opener.close == close]
        return any(later == earlier + 1 for earlier, later in pairwise(opened))

    def _opener(self, mark: bytes, pos: int) -> Opener:
        opener = self.rules.openers[mark]
        if opener.block and mark == b"{":
            before = self.text[max(0, pos - 32) : pos]
            if self.rules.value.search(before[before.rfind(b"\n") + 1 :]):
                return self.rules.values[opener.open]
        return opener

    def _heredoc_word(self, match: re.Match[bytes]) -> bytes:
        assert self.rules.heredoc is not None
        again = self.rules.heredoc.match(self.text, match.start())
        return next((group for group in again.groups() if group), b"") if again else b""

    def _line(self, start: int) -> None:
        if self._pending:
            self._stack.append((self._pending.pop(0), start))
            return
        if self._stack:
            self._end_line(start)
        self.lines.append((start, len(self._stack)))

    def _end_line(self, start: int) -> None:
        """Drop the brackets and strings that must have been left open if a new line begins at `start`."""
        for depth, (opener, _) in enumerate(self._stack):
            if not opener.multiline:
                self._drop(depth, start - 1)
                break
        before = len(self._stack)
        while self._stack and self._in_plain_bracket():
            pos = self._left_open_at(start, self._stack[-1][1])
            if pos < 0:
                break
            self._drop(len(self._stack) - 1, pos)
        if len(self._stack) < before:
            self.repairs.append((start, self.rules.data.terminator.encode()))

    def _in_plain_bracket(self) -> bool:
        """Return whether the innermost open delimiter is a bracket, but not of a block or of a string interpolation."""
        opener = self._stack[-1][0]
        inside_text = len(self._stack) > 1 and self._stack[-2][0].sort != BRACKET
        return opener.sort == BRACKET and not opener.block and not inside_text

    def _left_open_at(self, start: int, opened: int) -> int:
        """Return the position at which a closing bracket is missing, or -1 if the bracket may be closed later."""
        # `opened` is the position of the opening bracket, and `start` is the start of a new line.
        rules, text = self.rules, self.text
        if rules.restart and rules.restart.match(text, start):  # the line begins with a word that no bracket contains
            return start
        if opened < 0:
            return -1
        first, above = indent_end(text, start), text.rfind(b"\n", 0, opened) + 1
        if text[first : first + 1].isalpha() and first - start <= indent_end(text, above) - above:
            return start
        end = start - 1  # if the line above is the head of a block, the bracket is missing before the head's colon
        if rules.heads is None or text.rfind(b"\n", above, end) >= 0 or not rules.heads.match(text, above):
            return -1
        shown = len(text[above:end].rstrip())
        return above + shown - 1 if text[above + shown - 1 : above + shown] == b":" else -1

    def _drop(self, depth: int, pos: int) -> None:
        """End the brackets and strings from stack index `depth` on at `pos`, without closing delimiters."""
        for opener, start in reversed(self._stack[depth:]):
            self.dropped.append((opener, start))
            self.repairs.append((pos, opener.close))
        del self._stack[depth:]

    def _close(self, mark: bytes, pos: int) -> None:
        for depth in range(len(self._stack) - 1, -1, -1):
            opener, start = self._stack[depth]
            if opener.sort != BRACKET:
                break
            if opener.close == mark:
                self._drop(depth + 1, pos)
                del self._stack[depth:]
                self._closed = (pos, start)
                return


class LexedWindow:
    """The last part of a prefix and the bytes appended to the prefix, with the results of lexing them."""

    def __init__(self, rules: LexerRules, prefix: bytes) -> None:
        self.rules = rules
        base = kept_from(len(prefix))
        self._kept, self._whole = prefix[base:], base == 0
        self.seeded: tuple[Entry, ...] = ()  # brackets and strings that are open at the start of the window
        self.appended = 0  # number of appended bytes
        self.version = 0  # number of changes to the window
        self.checkpoint = LexState()  # state at the end of a line, from which lexing resumes
        self._begin(*window_start(rules, self._kept, self._whole))

    @property
    def text(self) -> bytes:
        """The bytes of the window, which ends at the cursor."""
        return self.lexer.text

    def begins_file(self, start: int) -> bool:
        """Return whether a position in the window is the start of the file."""
        return self._whole and self.start + start == 0

    def seed(self, outer: tuple[Entry, ...], text: tuple[Entry, ...]) -> None:
        """Restart lexing with `outer` and `text` open at the window's start; omit `text` if the window closes it."""
        for entries in (outer + text, outer):
            self.seeded = entries
            self.version += 1
            self._begin(self.start, self._at_line)
            if not text or self.state().stack == self.seeded:
                break

    def append(self, data: bytes) -> None:
        """Append bytes."""
        self._kept += data
        self.appended += len(data)
        self.version += 1
        start, at_line = window_start(self.rules, self._kept, self._whole)
        if (start, at_line) != (self.start, self._at_line):
            self._begin(start, at_line)
        else:
            self.lexer.text = self._kept[start:]

    def state(self) -> LexState:
        """Return the lexer state at the end of the text, after lexing the bytes since the last checkpoint."""
        lexer, last = self.lexer, self.checkpoint
        lexer.forget(last.pos)
        newline = lexer.text.rfind(b"\n", last.pos)
        while newline > last.pos and lexer.text.endswith((b"\\", b"\\\r"), newline - 2, newline):
            newline = lexer.text.rfind(b"\n", last.pos, newline)  # a backslash and its line ending are one event
        if newline > last.pos:
            last = self.checkpoint = lexer.run(last, newline)
        return lexer.run(last, len(lexer.text))

    def _begin(self, start: int, at_line: bool) -> None:
        self.start, self._at_line = start, at_line
        self.lexer = Lexer(self.rules, self._kept[start:])
        opened = self.seeded or (self.rules.beginning if self.begins_file(0) else ())
        if at_line and not (opened and opened[-1][0].sort != BRACKET):
            self.lexer.lines.append((0, len(opened)))
        self.checkpoint = LexState(stack=opened)


def kept_from(length: int) -> int:
    """Return the offset from which a prefix of `length` bytes must be retained for later windows."""
    return max(0, (length - BEFORE) // STEP * STEP)


def window_start(rules: LexerRules, text: bytes, whole: bool) -> tuple[int, bool]:
    """Return the start of the window at the end of `text`, and whether a line begins at that start.

    The window starts with a top-level line (so not inside a string or comment) if there is one, else with any line; if
    lines are long, the window may start inside a line. `whole` is true if the text begins at the start of the file.
    """
    size = len(text)
    start = kept_from(size)
    while size - start > STEP // 2 and text.count(b"\n", start) > MAX_LINES:
        start += STEP // 4
    if text.count(b"\n", start) * LONG_LINE < size - start:
        start = max(start, (size - LONG_LINES) // LONG_STEP * LONG_STEP)
    if start == 0 and whole:
        return 0, True
    item = next(filter(None, (anchor.search(text, start, size - LONG_STEP) for anchor in rules.anchors)), None)
    newline = item.start() if item else text.find(b"\n", start, min(start + STEP, size - LONG_STEP))
    return (newline + 1, True) if newline >= 0 else (start, False)


def indent_end(text: bytes, start: int) -> int:
    """Return the position after the white space at the start of a line."""
    while text[start : start + 1] in (b" ", b"\t"):
        start += 1
    return start


def in_text(state: LexState) -> Opener | None:
    """Return the opener of the string, block comment or heredoc around a position, or None in code."""
    if state.stack and state.stack[-1][0].sort != BRACKET:
        return state.stack[-1][0]
    return None


def word_before(text: bytes) -> bytes:
    """Return the word at the end of the text, or b"" if there is none."""
    start = len(text)
    while start > 0 and len(text) - start < 64 and is_word(text[start - 1]):
        start -= 1
    return text[start:]


def is_word(byte: int) -> bool:
    """Return whether a byte is part of a word: an ASCII letter, a digit, `_`, or a byte of a non-ASCII character."""
    return byte >= 0x80 or byte == 0x5F or 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122


def statement_start(text: bytes, pos: int, stack: tuple[Entry, ...]) -> int:
    """Return the start of the statement around a position, which is a line's start or follows a block opener or `;`."""
    start, block = pos, -1
    for opener, opened in reversed(stack):
        if opener.sort == BRACKET and opener.block:
            block = opened
            break
        start = opened if opened >= 0 else start
    line = text.rfind(b"\n", 0, start) + 1
    return max(line, block + 1, text.rfind(b";", line, start) + 1)


def introduces(line: bytes, rules: LexerRules) -> bool:
    """Return whether a line is a comment or a decorator, which introduces the next statement."""
    line = line.strip()
    comments = (*rules.line_comments, *(opener.open for opener in rules.openers.values() if opener.sort == COMMENT))
    return line.startswith(comments) or _ATTRIBUTE.match(line) is not None


def dangles(line: bytes) -> bool:
    """Return whether a line ends with an operator, so that the next line continues the statement."""
    return _DANGLING.search(line) is not None


def is_whole(line: bytes, rules: LexerRules) -> bool:
    """Return whether a line is a whole statement, given that no bracket is open at its end; False if unsure."""
    if not line.strip() or dangles(line) or introduces(line, rules):
        return False
    if rules.heads is not None:
        return rules.heads.match(line) is None and not line.rstrip().endswith(b":")  # a head may begin above
    return line.rstrip().endswith(b";") and _MAY_GO_ON.match(line) is None
