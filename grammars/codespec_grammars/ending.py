"""Find the end of a completion: the end of the line, of the statement, or of the block.

The end is determined from lexer states, line breaks and indents, not from a syntax tree. Once an end is found, later
bytes cannot move it. The first token of a line decides whether that line is part of the completion.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from codespec_grammars.lexer import Lexer, LexState, dangles, in_text, introduces, is_whole, is_word
from codespec_grammars.lexer_rules import BRACKET
from codespec_grammars.surroundings import Closed, Surroundings, ends_item, find_item, width, width_at
from codespec_grammars.tracker import max_body_indent

_NEWLINE, _COMMA, _BLANKS = 10, 44, b" \t\r\f"
_LONG_LINE = 1024  # bytes of a line from which the start of the line is not lexed again at each closer


class Scope(Enum):
    """How much to complete: the line, the statement with its blocks, or the enclosing block."""

    LINE = auto()
    REST = auto()  # the rest of the line, and the lines inside the brackets that the line opens
    STATEMENT = auto()
    BLOCK = auto()


_OF_LINES = (Scope.LINE, Scope.REST)


class Cut(NamedTuple):
    """The decision, made at byte `seen`, to end a completion after `keep` bytes; `reason` is a clause for the user."""

    seen: int
    keep: int
    reason: str


class CodeEnd:
    """Finds the end of the text written at a cursor; `cut` is None until the end is found."""

    def __init__(self, around: Surroundings, scope: Scope) -> None:
        self.around, self.scope = around, scope
        self.cut: Cut | None = None
        self._text = bytearray()
        self._lexer = Lexer(around.rules, around.before)
        self._checkpoint = around.checkpoint
        self._open = len(around.state.stack)  # number of entries open at the cursor that are still open
        self._line = -len(around.line)  # start of the current line
        self._new = around.blank  # whether the current line has not been judged yet
        self._word = -1  # start of the current line's first word, while the decision depends on that word
        self._inside = False  # whether the current line begins inside text or brackets
        self._introduces = True  # whether all lines so far are comments or decorators
        self._tail = -1  # the end of a finished block, after which only closers may follow
        self._goes_on = scope is Scope.STATEMENT
        bracket = around.state.brackets[-1][1] if around.state.brackets else -1
        self._bracketed = around.opened and bracket >= 0 and not around.before[bracket + 1 :].strip()
        begins = around.opened and not self._goes_on
        self._width = around.opener_width if begins else width(around.line)
        deeper = not self._bracketed if begins else self._goes_on and not around.blank
        self._least = self._width + deeper  # the minimum indent of further lines
        self._item = find_item(around)  # None if no comma ends the item
        self._comma = -1  # a comma that ends the item, unless its line ends there
        self._body = -1  # the maximum indent of the block whose head is the last line, -1 if unknown
        if around.blank and around.opened and len(around.line) <= (most := self._max_body(around.state)):
            self._body = most  # unless the user has indented the line further
        self._closers = {opener.close[-1] for opener in around.rules.openers.values() if opener.close}
        self._brackets = {pair[1].encode()[0] for pair in around.rules.data.brackets} & set(b")]}")

    def advance(self, data: bytes) -> None:
        """Append bytes, which may end inside a UTF-8 character."""
        for byte in data:
            if self.cut is not None:
                return
            self._text.append(byte)
            self._look(byte)

    def finish(self) -> None:
        """Mark the text as complete, so that a decision that waits for the end of a word is made."""
        if self.cut is None and self._word >= 0:
            self._judge(bytes(self._text[self._word :]))

    @property
    def certain(self) -> int:
        """The number of leading bytes of the completion that no later byte can remove."""
        if self.cut is not None:
            return self.cut.keep
        if self._tail >= 0:
            return self._tail
        if self._comma >= 0:
            return self._comma
        if self._new:
            return len(self._above.rstrip())
        return len(self._text.rstrip()) - self._half_closer()

    @property
    def _above(self) -> bytearray:
        return self._text[: max(0, self._line)]

    def _look(self, byte: int) -> None:
        if self._tail >= 0:
            self._follow_tail(byte)
            return
        if self._comma >= 0 and byte not in _BLANKS:
            if byte != _NEWLINE and bytes([byte]) not in {mark[:1] for mark in self.around.rules.line_comments}:
                self._end(self._comma, "the item is complete")
                return
            self._comma, self._item = -1, None
        if self._word >= 0:
            if is_word(byte):
                return
            self._judge(bytes(self._text[self._word : -1]))
            if self._tail >= 0:
                return
        elif self._new and byte not in _BLANKS and byte != _NEWLINE:
            self._begin_line(byte)
        if self.cut is None and byte == _NEWLINE:
            self._end_line()
        elif self.cut is None and byte in self._closers and self._open:
            self._close()
        elif self.cut is None and byte == _COMMA and self._item is not None:
            self._end_item(self._item)

    def _end_item(self, begun: bytes) -> None:
        """End the completion at a comma that ends the item at the cursor."""
        # The completion goes on if the comma ends its line and there is no text to the right of the cursor.
        state, at_cursor = self._state(), self.around.state
        if len(state.stack) != len(at_cursor.stack) or self._open < len(state.stack) or state.comment >= 0:
            self._pass_by(state)
        elif ends_item(begun + self._text[:-1]):
            self._comma = len(self._text) - 1
            if self.around.right.strip():
                self._end(self._comma, "the item is complete")

    def _state(self, without: int = 0) -> LexState:
        """Return the lexer state at the end of the text, not counting the last `without` bytes."""
        self._lexer.text = self.around.before + bytes(self._text[: len(self._text) - without])
        self._lexer.forget(self._checkpoint.pos)
        return self._lexer.run(self._checkpoint, len(self._lexer.text))

    def _end_line(self) -> None:
        line, rules = self._full_line()[:-1], self.around.rules
        if self.scope is Scope.LINE:
            self._end_shown("the line is complete")
            return
        if line.strip() and not self._inside:
            self._introduces = self._introduces and introduces(line, rules)
        state = self._state(1)
        if self.scope is Scope.REST and len(state.stack) <= self._open:
            self._end_shown("the line is complete")
            return
        closed = len(state.stack) == self._open and (not state.stack or state.stack[-1][0].block)
        if not self._above.strip() and self._goes_on and closed and is_whole(line, rules):
            self._end(len(self._text.rstrip()), "the statement is complete")
            return
        if line.strip():
            self._body = self._max_body(state)
        if not line.endswith((b"\\", b"\\\r")):
            self._checkpoint = state
        self._line, self._new, self._inside = len(self._text), True, False

    def _max_body(self, state: LexState) -> int:
        around, text = self.around, self._lexer.text[: state.pos]
        return max_body_indent(around.rules, around.before, text, state)

    def _full_line(self) -> bytes:
        return bytes(self._text[self._line :]) if self._line >= 0 else self.around.line + self._text

    def _begin_line(self, byte: int) -> None:
        """Decide whether a line is part of the completion, at its first non-blank byte or after its first word."""
        state, line = self._state(1), self._full_line()
        self._open = min(self._open, len(state.stack))
        own, closes = len(state.stack) > self._open, byte in self._brackets
        self._indent = width(line)
        # The indent of a preprocessor directive inside a block has no meaning.
        hash_ = byte == 0x23 and b"#" not in self.around.rules.line_comments
        directive = hash_ and self._indent < self._width and (own or bool(self.around.state.stack))
        if in_text(state) is not None or self.scope in _OF_LINES:
            self._new, self._inside = False, True
        elif 0 <= self._body < len(line) - 1:
            self._end_above("the body is not indented as the file is")
        elif closes and not state.stack:
            self._end_above("it would close a bracket that is not open")
        elif self._indent >= self._least or closes or directive:
            self._accept(own)
        elif is_word(byte):
            self._word = len(self._text) - 1
        else:
            self._judge(bytes([byte]))

    def _accept(self, own: bool) -> None:
        """Accept a line into the completion; the first line of a block or statement sets the minimum indent."""
        around = self.around
        if not self._above.strip() and not own and self._text[-1] not in self._brackets:
            if self.scope is Scope.STATEMENT and around.blank:
                self._width, self._least = self._indent, self._indent + 1
            elif self.scope is Scope.BLOCK and around.opened and not self._bracketed:
                self._least = self._indent
            elif self.scope is Scope.BLOCK and not around.opened and around.blank:
                self._least = max(self._least, self._indent)
        self._new, self._word, self._inside = False, -1, own

    def _judge(self, first: bytes) -> None:
        """Decide by the first token whether a line that is indented too little still belongs to the completion."""
        state, data = self._state(), self.around.rules.data
        self._open = min(self._open, len(state.stack))
        begins = len(self.around.before) + max(0, self._line)
        own = any(entry[1] < begins for entry in state.stack[self._open :])
        word, level = first.decode("utf-8", "replace"), self._indent == self._width
        closes = self.scope is Scope.BLOCK and self.around.opened and not self._bracketed and word in data.closing_words
        if own or (level and self._goes_on and self._is_part(first, word)):
            self._accept(own)
        elif level and closes:
            self._close_by_word(first)
        else:
            self._end_above("the statement is complete" if self._goes_on else "the block is complete")

    def _is_part(self, first: bytes, word: str) -> bool:
        """Return whether a line with the indent of the statement's first line belongs to the statement."""
        # Such a line follows a decorator or comment, or begins with a word such as `else` or with the opening `{`.
        data = self.around.rules.data
        if self._introduces or dangles(bytes(self._text[: max(0, self._line - 1)])):
            return bool(self._above.strip())
        if first == b"{":
            return "{" in data.block_brackets and b"{" not in self._text[:-1]
        return word in data.continuation_words and word not in data.label_words

    def _close_by_word(self, word: bytes) -> None:
        """End the block with a word such as `fi` or `end`, unless the suffix already contains that word."""
        below = self.around.below
        if width(below) == self._indent and re.match(re.escape(word) + rb"\b", below.strip()):
            self._end_above("its end is to the right of the cursor")
            return
        self._new, self._tail = False, self._word + len(word)
        self._word = -1
        if len(self._text) > self._tail:
            self._follow_tail(self._text[self._tail])

    def _close(self) -> None:
        """Process a closing delimiter, which may close a bracket or string that was open at the cursor."""
        state = self._state()
        if len(state.stack) >= self._open:
            self._pass_by(state)
            return
        index = self._open = len(state.stack)
        (opener, pos), closed = self.around.state.stack[index], self.around.closed[index]
        at = len(self._text) - len(opener.close)
        if not self._text.endswith(opener.close):
            return
        first = self._line >= 0 and not self._text[self._line : at].strip()
        if closed is Closed.SAME_LINE or (closed is Closed.LATER and not first):
            self._end(at, "its end is to the right of the cursor")
        elif closed is Closed.LATER:
            self._end(len(self._text[:at].rstrip()), "its end is to the right of the cursor")
        elif opener.sort == BRACKET and self.scope not in _OF_LINES:
            self._width = max(0, width_at(self.around.before, pos))
            self._least = self._width + 1
            self._goes_on, self._tail = (False, len(self._text)) if opener.block and first else (True, -1)

    def _pass_by(self, state: LexState) -> None:
        """Move the lexer checkpoint to the end of the text if the line is long, except in a comment or delimiter."""
        delimiter = in_text(state) is not None and self._text[-1] not in b")]}"
        if state.pos - self._checkpoint.pos > _LONG_LINE and state.comment < 0 and not delimiter:
            self._checkpoint = state

    def _follow_tail(self, byte: int) -> None:
        """Process a byte of the rest of the line after a finished block."""
        # The block may be followed by outer closing brackets, a terminator or the rest of the expression. A word such
        # as `else` ends the completion, because another block of the statement begins there.
        after = bytes(self._text[self._tail :]).lstrip(b" \t")
        if not after or is_word(byte):
            return
        stack = self.around.state.stack
        in_call = self._open > 0 and stack[self._open - 1][0].open == b"("  # the block is one of its arguments
        if is_word(after[0]) and after[:-1].decode("utf-8", "replace") in self.around.rules.data.continuation_words:
            self._end(self._tail, "the block is complete")
        elif byte == _NEWLINE or (byte in b";," and len(after) == 1 and not (byte == _COMMA and in_call)):
            self._end(self._tail if byte == _NEWLINE else len(self._text), "the block is complete")
        elif after != b"\r":
            self._go_on_behind(byte)

    def _go_on_behind(self, byte: int) -> None:
        state = self._state()
        if len(state.stack) < self._open and self.around.closed[len(state.stack)] is Closed.NOWHERE:
            self._open, self._tail = len(state.stack), len(self._text)
        elif byte in self._brackets:
            self._end(self._tail, "the block is complete")
        else:
            self._tail = -1
            self._least = self._width + 1

    def _half_closer(self) -> int:
        """Return the number of trailing bytes that may begin a closing delimiter that the suffix already contains."""
        if not self._open or self.around.closed[self._open - 1] is Closed.NOWHERE:
            return 0
        close = self.around.state.stack[self._open - 1][0].close
        lengths = range(len(close) - 1, 0, -1)
        return next((size for size in lengths if self._text.endswith(close[:size])), 0)

    def _end_shown(self, reason: str) -> None:
        """End the completion after the last visible character, if the text has one."""
        if self._text.strip():
            self._end(len(self._text.rstrip()), reason)

    def _end_above(self, reason: str) -> None:
        self._end(len(self._above.rstrip()), reason)

    def _end(self, keep: int, reason: str) -> None:
        self.cut = Cut(len(self._text), keep, reason)
