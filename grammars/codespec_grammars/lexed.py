"""The text before the tip, lexed. Knows the window, checkpoints and how to go back to one; knows no tree."""

from __future__ import annotations

from codespec_grammars.lexer import Entry, Lexer, LexState
from codespec_grammars.lexer_rules import BRACKET, LexerRules
from codespec_grammars.window import kept_from, window_start

MOST_CHECKPOINTS = 32


class LexedText:
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
        """The tip's place in `text`."""
        return len(self.lexer.text)

    def begins_file(self, start: int) -> bool:
        """Whether a place in the window is the start of the whole text."""
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
