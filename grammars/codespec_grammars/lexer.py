"""A left-to-right lexer for one language: what stands open at a position. Knows brackets, strings, comments and code
lines; knows no grammar. Its state at a position depends on the bytes before it only, so that following a text and
starting afresh give the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from codespec_grammars.lexer_rules import BRACKET, LexerRules, Opener, heredoc_opener

# An open thing and where it was opened; -1 where only a sent cursor shows it.
Entry = tuple[Opener, int]


_SKIPPED = frozenset({"atom", "flat", "escape"})


@dataclass(frozen=True, slots=True)
class LexState:
    """What is known at `pos`: the open things, outermost first; the last pair of brackets that was closed; the heredocs
    that begin at the next line; where the last line comment began."""

    pos: int = 0
    stack: tuple[Entry, ...] = ()
    closed: tuple[int, int] = (-1, -1)
    pending: tuple[bytes, ...] = ()
    comment: int = -1

    @property
    def brackets(self) -> tuple[Entry, ...]:
        """The open brackets alone."""
        return tuple(entry for entry in self.stack if entry[0].sort == BRACKET)


class Lexer:
    """Runs over one text, `run` by `run`. `lines` collects the starts of the lines that begin in code, with the number
    of things open there; `dropped` what ended without its closer, `repairs` where that closer would have to stand."""

    def __init__(self, rules: LexerRules, text: bytes) -> None:
        self.rules, self.text = rules, text
        self.lines: list[tuple[int, int]] = []
        self.dropped: list[Entry] = []
        self.repairs: list[tuple[int, bytes]] = []

    def run(self, state: LexState, end: int) -> LexState:
        """The state at `end`, from the one at `state.pos`."""
        self._stack = list(state.stack)
        self._closed, self._pending, self._comment = state.closed, list(state.pending), -1
        pos, text, stack, code = state.pos, self.text, self._stack, self.rules.code
        while pos < end:
            inside = stack[-1][0].inside if stack else None
            found = (inside or code).search(text, pos, end)
            if found is None:
                break
            pos = found.end()
            if found.lastgroup not in _SKIPPED:
                self._event(found, inside is not None, end)
        return LexState(end, tuple(self._stack), self._closed, tuple(self._pending), self._comment)

    def forget(self, pos: int) -> None:
        """Forgets the lines and repairs that a run from `pos` finds again."""
        while self.lines and self.lines[-1][0] > pos:
            self.lines.pop()
        while self.repairs and self.repairs[-1][0] >= pos:
            self.repairs.pop()
        self.dropped.clear()

    def _event(self, found: re.Match[bytes], inside: bool, end: int) -> None:
        group = found.lastgroup
        if group == "open" or group == "long":
            self._stack.append((self._opener(found), found.start()))
        elif group == "close" and inside:
            self._stack.pop()
        elif group == "close":
            self._close(found)
        elif group == "line":
            self._line(found.end())
        elif group == "end":
            self._drop(len(self._stack) - 1, found.start())
            self._line(found.end())
        elif group == "comment" and found.end() == end:
            self._comment = found.start()
        elif group == "heredoc":
            self._pending.append(self._heredoc_word(found))

    def _opener(self, found: re.Match[bytes]) -> Opener:
        opener = self.rules.openers[found.group()]
        if opener.block and opener.open == b"{":
            before = self.text[max(0, found.start() - 32) : found.start()]
            if self.rules.value.search(before[before.rfind(b"\n") + 1 :]):
                return self.rules.values[opener.open]
        return opener

    def _heredoc_word(self, found: re.Match[bytes]) -> bytes:
        assert self.rules.heredoc is not None
        again = self.rules.heredoc.match(found.group())
        return again[1] if again else b""

    def _line(self, start: int) -> None:
        if self._pending:
            self._stack.append((heredoc_opener(self._pending.pop(0)), start))
            return
        if self._stack:
            self._end_line(start)
        self.lines.append((start, len(self._stack)))

    def _end_line(self, start: int) -> None:
        """Drops what a new line shows to have been left open above."""
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
            self.repairs.append((start, self.rules.terminator))

    def _in_plain_bracket(self) -> bool:
        """Whether the innermost thing is a bracket that holds no statements, and no interpolation in a string."""
        opener = self._stack[-1][0]
        inside_text = len(self._stack) > 1 and self._stack[-2][0].sort != BRACKET
        return opener.sort == BRACKET and not opener.block and not inside_text

    def _left_open_at(self, start: int, opened: int) -> int:
        """Where the bracket opened at `opened` must have been meant to end, now that a line begins at `start`: before
        it where it begins a statement (with a word that never stands inside brackets, or no deeper than the line with
        the bracket); before the colon of a head on the line above; -1 where it may go on."""
        rules, text = self.rules, self.text
        if rules.restart and rules.restart.match(text, start):
            return start
        if opened < 0:
            return -1
        first = _first_word(text, start)
        above = text.rfind(b"\n", 0, opened) + 1
        if first >= 0 and first - start <= _first_column(text, above) - above:
            return start
        end = start - 1
        if rules.heads is None or text.rfind(b"\n", above, end) >= 0 or not rules.heads.match(text, above):
            return -1
        shown = len(text[above:end].rstrip())
        return above + shown - 1 if text[above + shown - 1 : above + shown] == b":" else -1

    def _drop(self, depth: int, pos: int) -> None:
        """Takes what is open from `depth` on as ended at `pos`."""
        for opener, start in reversed(self._stack[depth:]):
            self.dropped.append((opener, start))
            self.repairs.append((pos, opener.close))
        del self._stack[depth:]

    def _close(self, found: re.Match[bytes]) -> None:
        wanted = found.group()
        for depth in range(len(self._stack) - 1, -1, -1):
            opener, start = self._stack[depth]
            if opener.sort != BRACKET:
                break
            if opener.close == wanted:
                self._drop(depth + 1, found.start())
                del self._stack[depth:]
                self._closed = (found.start(), start)
                return


def _first_column(text: bytes, start: int) -> int:
    while text[start : start + 1] in (b" ", b"\t"):
        start += 1
    return start


def _first_word(text: bytes, start: int) -> int:
    """Where the line's first word begins, -1 where it begins with something else or is blank."""
    first = _first_column(text, start)
    return first if text[first : first + 1].isalpha() else -1


def in_text(state: LexState) -> Opener | None:
    """The string, block comment or heredoc that the position lies in."""
    if state.stack and state.stack[-1][0].sort != BRACKET:
        return state.stack[-1][0]
    return None
