"""A left-to-right lexer that tracks open brackets, strings and comments, without a grammar.

Its state at a position depends only on the bytes before it, so incremental and fresh runs give the same result. Lines,
open brackets and words show where a statement begins, and tell heads and whole statements apart.
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

BEFORE = 64  # bytes of a line before a literal that decide whether it is one
_SKIPPED = frozenset({"atom", "flat", "escape"})
# Decorators, annotations and the like, alone on their line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


@dataclass(frozen=True, slots=True)
class LexState:
    """The lexer state at `pos`.

    `stack` holds the open entries, outermost first; `closed` the positions of the last closed bracket pair, closer
    first; `pending` the heredocs that begin on the next line; `comment` the start of the line comment around `pos`, or
    -1.
    """

    pos: int = 0
    stack: tuple[Entry, ...] = ()
    closed: tuple[int, int] = (-1, -1)
    pending: tuple[Opener, ...] = ()
    comment: int = -1

    @property
    def brackets(self) -> tuple[Entry, ...]:
        """The open brackets, without strings, comments and heredocs."""
        return tuple(entry for entry in self.stack if entry[0].sort == BRACKET)


class Lexer:
    """Lexes one text incrementally.

    `lines` collects the start of each line that begins in code, with the number of entries open there. `dropped`
    collects the entries that ended without a closer, and `repairs` the positions where their closers are missing.
    """

    def __init__(self, rules: LexerRules, text: bytes) -> None:
        self.rules, self.text = rules, text
        self.lines: list[tuple[int, int]] = []
        self.dropped: list[Entry] = []
        self.repairs: list[tuple[int, bytes]] = []

    def run(self, state: LexState, end: int) -> LexState:
        """Lex from `state.pos` to `end` and return the state there."""
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
        """Discard the lines and repairs that a run from `pos` will find again, and all of `dropped`."""
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
                self._close(mark, pos)  # its opener and closer are the same
                return
            innermost -= 1
        self._stack.append((opener, pos))

    def _literal(self, match: re.Match[bytes]) -> int:
        """Open the literal, if it is one here. Return the position to go on from."""
        start, text = match.start(), self.text
        line = text[max(text.rfind(b"\n", 0, start) + 1, start - BEFORE) : start]
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
        """Return the columns of the line's part that text below must exceed to belong to it."""
        start = self.text.rfind(b"\n", 0, match.start()) + 1
        parent = self.rules.indented_parent.match(self.text, start)
        return parent.end() - start if parent else 0

    def _in_arithmetic(self) -> bool:
        """Return whether two openers in a row, as in `((`, surround the position."""
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
        """Drop the entries that the new line shows to have been left open."""
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
        """Return whether the innermost entry is a bracket that is neither a block nor an interpolation in a string."""
        opener = self._stack[-1][0]
        inside_text = len(self._stack) > 1 and self._stack[-2][0].sort != BRACKET
        return opener.sort == BRACKET and not opener.block and not inside_text

    def _left_open_at(self, start: int, opened: int) -> int:
        """Return the position where a bracket that was left open should have been closed, or -1 if it may continue.

        `opened` is the bracket's position, `start` that of the new line. The closer belongs before the new line if that
        begins a statement: with a word that never occurs inside brackets, or at most as deep as the bracket's line. It
        belongs before the final colon if the line above is a head.
        """
        rules, text = self.rules, self.text
        if rules.restart and rules.restart.match(text, start):
            return start
        if opened < 0:
            return -1
        first, above = indent_end(text, start), text.rfind(b"\n", 0, opened) + 1
        if text[first : first + 1].isalpha() and first - start <= indent_end(text, above) - above:
            return start
        end = start - 1
        if rules.heads is None or text.rfind(b"\n", above, end) >= 0 or not rules.heads.match(text, above):
            return -1
        shown = len(text[above:end].rstrip())
        return above + shown - 1 if text[above + shown - 1 : above + shown] == b":" else -1

    def _drop(self, depth: int, pos: int) -> None:
        """Treat the entries from `depth` on as ended at `pos`."""
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


def indent_end(text: bytes, start: int) -> int:
    """Return the end of the white space at the start of a line."""
    while text[start : start + 1] in (b" ", b"\t"):
        start += 1
    return start


def in_text(state: LexState) -> Opener | None:
    """Return the opener of the string, block comment or heredoc around the position, or None."""
    if state.stack and state.stack[-1][0].sort != BRACKET:
        return state.stack[-1][0]
    return None


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


def begins_with(words: re.Pattern[bytes], text: bytes, state: LexState) -> bool:
    """Return whether the statement that the text ends in begins with one of the words."""
    return words.match(text, statement_start(text, len(text), state.stack)) is not None


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
