"""Find the end of a completion: the end of the line, of the statement, or of the block.

Uses the lexer, line breaks and indents, but no syntax tree. Each decision depends only on the bytes before it, so
neither chunk boundaries nor later text can move an end. A line is judged as soon as its first token is known; until
then, the completion may already have ended above it.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from codespec_grammars.items import find_item
from codespec_grammars.lexer import Lexer, LexState, in_text
from codespec_grammars.lexer_rules import BRACKET
from codespec_grammars.statement import dangles, introduces, is_whole, is_word, max_body_indent
from codespec_grammars.surroundings import Closed, Surroundings, width

_NEWLINE, _COMMA, _BLANKS = 10, 44, b" \t\r\f"
_LONG_LINE = 1024  # a line longer than this (bytes) isn't lexed again from its start at each closer


class Scope(Enum):
    """How much to complete: the line, the statement (with the blocks of a compound one), or the enclosing block.

    REST is the line, and the lines in brackets that it opens.
    """

    LINE = auto()
    REST = auto()
    STATEMENT = auto()
    BLOCK = auto()


_OF_LINES = (Scope.LINE, Scope.REST)


class Cut(NamedTuple):
    """The end of a completion: `keep` is its length in bytes, `seen` the number of bytes that were needed to decide.

    `reason` is a human-readable clause.
    """

    seen: int
    keep: int
    reason: str


class CodeEnd:
    """Find the end of the text written at a cursor. `cut` is None until the end has been found."""

    def __init__(self, around: Surroundings, scope: Scope) -> None:
        self.around, self.scope = around, scope
        self.cut: Cut | None = None
        self._text = bytearray()
        self._lexer = Lexer(around.rules, around.before)
        self._checkpoint = around.checkpoint
        self._open = len(around.state.stack)  # number of entries open at the cursor that are still open
        self._line = -len(around.line)  # start of the current line
        self._new = around.blank  # the current line has not been judged yet
        self._word = -1  # start of its first word, while the decision depends on that word
        self._inside = False  # the current line begins inside text or brackets
        self._introduces = True  # only comments, decorators and the like so far
        self._tail = -1  # the end of a finished block, after which only closers may follow
        self._least = self._begin()
        self._item = find_item(around)  # None: a comma ends nothing
        self._comma = -1  # a comma that ends the item, unless its line ends there
        self._body = -1  # the most indent of the block whose head the last line ended, -1 if it is not known
        if around.blank and around.opened and len(around.line) <= (most := self._max_body(around.state)):
            self._body = most  # else the user has indented the line further
        self._closers = {mark[-1] for mark in (opener.close for opener in around.rules.openers.values()) if mark}

    def _begin(self) -> int:
        """Return the initial minimum indent for further lines."""
        around = self.around
        self._width = width(around.line)
        self._goes_on = self.scope is Scope.STATEMENT
        self._bracketed = around.opened and bool(around.state.brackets) and self._opened_by_bracket()
        if self.scope is Scope.STATEMENT:
            return self._width if around.blank else self._width + 1
        if not around.opened:
            return self._width
        self._width = around.opener_width
        return around.opener_width if self._bracketed else around.opener_width + 1

    def _opened_by_bracket(self) -> bool:
        pos = self.around.state.brackets[-1][1]
        return pos >= 0 and not self.around.before[pos + 1 :].strip()

    def advance(self, data: bytes) -> None:
        """Append bytes, which may end inside a UTF-8 character."""
        for byte in data:
            if self.cut is not None:
                return
            self._text.append(byte)
            self._look(byte)

    def finish(self) -> None:
        """Mark the end of input, which completes a pending word at the start of a line."""
        if self.cut is None and self._word >= 0:
            self._judge(bytes(self._text[self._word :]))

    @property
    def certain(self) -> int:
        """The number of bytes that later input can't remove from the completion."""
        if self.cut is not None:
            return self.cut.keep
        if self._tail >= 0:
            return self._tail
        if self._comma >= 0:
            return self._comma
        if self._new:
            return len(self._text[: max(0, self._line)].rstrip())
        return len(self._text.rstrip()) - self._half_closer()

    def _look(self, byte: int) -> None:
        if self._tail >= 0:
            self._follow_tail(byte)
            return
        if self._comma >= 0 and byte not in _BLANKS:
            self._follow_comma(byte)
            if self.cut is not None:
                return
        if self._word >= 0:
            self._grow_word(byte)
            if self.cut is not None or self._word >= 0 or self._tail >= 0:
                return
        elif self._new and byte not in _BLANKS and byte != _NEWLINE:
            self._begin_line(byte)
        if self.cut is None and byte == _NEWLINE:
            self._end_line()
        elif self.cut is None and byte in self._closers and self._open:
            self._close()
        elif self.cut is None and byte == _COMMA and self._item is not None:
            self._end_item()

    def _end_item(self) -> None:
        """End at a comma that ends the item at the cursor. With nothing to the right, one at a line's end stays."""
        length = len(self._text)
        state = self._state(length)
        if len(state.stack) != len(self.around.state.stack) or self._open < len(state.stack) or state.comment >= 0:
            self._pass_by(state)
        elif self._item is not None and self._item.is_own(bytes(self._text[:-1])):
            self._comma = length - 1
            if self.around.right.strip():
                self._end(self._comma, "the item is complete")

    def _follow_comma(self, byte: int) -> None:
        if byte != _NEWLINE and bytes([byte]) not in {mark[:1] for mark in self.around.rules.line_comments}:
            self._end(self._comma, "the item is complete")
        self._comma, self._item = -1, None

    def _state(self, length: int) -> LexState:
        """Return the lexer state after the first `length` bytes."""
        self._lexer.text = self.around.before + bytes(self._text[:length])
        self._lexer.forget(self._checkpoint.pos)
        return self._lexer.run(self._checkpoint, len(self._lexer.text))

    def _end_line(self) -> None:
        length = len(self._text)
        line = self._full_line(length - 1)
        if self.scope is Scope.LINE:
            self._end_shown("the line is complete")
            return
        if line.strip() and not self._inside:
            self._introduces = self._introduces and introduces(line, self.around.rules)
        state = self._state(length - 1)
        if self.scope is Scope.REST and len(state.stack) <= self._open:
            self._end_shown("the line is complete")
            return
        if self._is_first() and self._is_sealed(line, state):
            self._end(len(self._text.rstrip()), "the statement is complete")
            return
        if line.strip():
            self._body = self._max_body(state)
        if not line.endswith((b"\\", b"\\\r")):
            self._checkpoint = state
        self._line, self._new, self._inside = length, True, False

    def _max_body(self, state: LexState) -> int:
        """Return the most indent of the block whose head ends at `state`, in characters, or -1 if nothing shows it."""
        around = self.around
        text = self._lexer.text[: state.pos]
        return max_body_indent(around.data, around.rules, around.before, text, state)

    def _is_sealed(self, line: bytes, state: LexState) -> bool:
        """Return whether the statement ends with its first line, regardless of later lines."""
        closed = len(state.stack) == self._open and (not state.stack or state.stack[-1][0].block)
        return self._goes_on and closed and is_whole(line, self.around.rules)

    def _full_line(self, end: int) -> bytes:
        if self._line >= 0:
            return bytes(self._text[self._line : end])
        return self.around.line + bytes(self._text[:end])

    def _begin_line(self, byte: int) -> None:
        """Judge the line at its first non-blank byte, or wait for its first word to end."""
        state = self._state(len(self._text) - 1)
        self._open = min(self._open, len(state.stack))
        own = len(state.stack) > self._open
        self._indent = width(self._full_line(len(self._text)))
        if in_text(state) is not None or self.scope in _OF_LINES:
            self._new, self._inside = False, True
        elif 0 <= self._body < len(self._full_line(len(self._text))) - 1:
            self._end_above("the body is not indented as the file is")
        elif self._is_closer(byte) and not state.stack:
            self._end_above("it would close a bracket that is not open")
        elif self._indent >= self._least or self._is_closer(byte) or self._is_directive(byte, own):
            self._accept(own)
        elif is_word(byte):
            self._word = len(self._text) - 1
        else:
            self._judge(bytes([byte]))

    def _accept(self, own: bool) -> None:
        """Accept the line. The first line of a block, or after a blank cursor line, sets the minimum indent."""
        if self._is_first() and not own and not self._is_closer(self._text[-1]):
            self._settle()
        self._new, self._word, self._inside = False, -1, own

    def _is_first(self) -> bool:
        return not self._text[: max(0, self._line)].strip()

    def _settle(self) -> None:
        """Take the first line's indent as the reference for later lines."""
        if self.scope is Scope.STATEMENT and self.around.blank:
            self._width, self._least = self._indent, self._indent + 1
        elif self.scope is Scope.BLOCK and self.around.opened and not self._bracketed:
            self._least = self._indent
        elif self.scope is Scope.BLOCK and not self.around.opened:
            self._least = max(self._least, self._indent) if self.around.blank else self._least

    def _is_closer(self, byte: int) -> bool:
        return byte in b")]}" and any(pair[1].encode()[0] == byte for pair in self.around.data.brackets)

    def _is_directive(self, byte: int, own: bool) -> bool:
        """Return whether the line is a preprocessor directive inside a block, whose indent is meaningless."""
        inside = own or bool(self.around.state.stack)
        return byte == 0x23 and inside and b"#" not in self.around.rules.line_comments and self._indent < self._width

    def _grow_word(self, byte: int) -> None:
        if not is_word(byte):
            self._judge(bytes(self._text[self._word : -1]))

    def _judge(self, first: bytes) -> None:
        """Decide by its first token whether a line that is not indented enough still belongs to the completion."""
        state = self._state(len(self._text))
        self._open = min(self._open, len(state.stack))
        begins = len(self.around.before) + max(0, self._line)
        own = any(entry[1] < begins for entry in state.stack[self._open :])
        word, level = first.decode("utf-8", "replace"), self._indent == self._width
        if own or (level and self._goes_on and self._is_part(first, word)):
            self._accept(own)
        elif level and self._closes_block(word):
            self._close_by_word(word)
        else:
            self._end_above("the statement is complete" if self._goes_on else "the block is complete")

    def _is_part(self, first: bytes, word: str) -> bool:
        """Return whether a line at the indent of the statement's first line belongs to the statement.

        It does after a decorator or comment, if it begins with a word such as `else`, or if it is the opening `{`.
        """
        data = self.around.data
        if self._introduces or dangles(bytes(self._text[: max(0, self._line - 1)])):
            return not self._is_first()
        if first == b"{":
            return "{" in data.block_brackets and b"{" not in self._text[:-1]
        return word in data.continuation_words and word not in data.label_words

    def _closes_block(self, word: str) -> bool:
        opened = self.scope is Scope.BLOCK and self.around.opened and not self._bracketed
        return opened and word in self.around.data.closing_words

    def _close_by_word(self, word: str) -> None:
        """End the block with `fi`, `end` or the like, unless the suffix already closes it."""
        below = self.around.below
        if width(below) == self._indent and re.match(re.escape(word.encode()) + rb"\b", below.strip()):
            self._end_above("its end is to the right of the cursor")
            return
        end = self._word + len(word.encode())
        self._new, self._word, self._tail = False, -1, end
        if len(self._text) > end:
            self._follow_tail(self._text[end])

    def _close(self) -> None:
        """Handle a closer, which may close something that was open at the cursor."""
        length = len(self._text)
        state = self._state(length)
        if len(state.stack) >= self._open:
            self._pass_by(state)
            return
        index = self._open = len(state.stack)
        entry, closed = self.around.state.stack[index], self.around.closed[index]
        at = length - len(entry[0].close)
        if not self._text.endswith(entry[0].close):  # ended by something else
            return
        first = self._line >= 0 and not self._text[self._line : at].strip()
        if closed is Closed.SAME_LINE or (closed is Closed.LATER and not first):
            self._end(at, "its end is to the right of the cursor")
        elif closed is Closed.LATER:
            self._end(len(self._text[:at].rstrip()), "its end is to the right of the cursor")
        elif entry[0].sort == BRACKET and self.scope not in _OF_LINES:
            self._width = max(0, self.around.width_of(entry))
            self._least = self._width + 1
            self._goes_on, self._tail = (False, length) if entry[0].block and first else (True, -1)

    def _pass_by(self, state: LexState) -> None:
        """Move the checkpoint here if the line is long, unless inside a comment or possibly inside a delimiter."""
        delimiter = in_text(state) is not None and self._text[-1] not in b")]}"
        if state.pos - self._checkpoint.pos > _LONG_LINE and state.comment < 0 and not delimiter:
            self._checkpoint = state

    def _follow_tail(self, byte: int) -> None:
        """Follow the rest of the line after a finished block.

        Outer closers, a terminator or the rest of the expression may follow. A word such as `else` begins another block
        of the same statement and is excluded.
        """
        after = bytes(self._text[self._tail :]).lstrip(b" \t")
        if not after or is_word(byte):
            return
        if is_word(after[0]) and after[:-1].decode("utf-8", "replace") in self.around.data.continuation_words:
            self._end(self._tail, "the block is complete")
        elif byte == _NEWLINE or (byte in b";," and len(after) == 1 and not (byte == 0x2C and self._in_call())):
            self._end(self._tail if byte == _NEWLINE else len(self._text), "the block is complete")
        elif after != b"\r":
            self._go_on_behind(byte)

    def _in_call(self) -> bool:
        """Return whether the block is inside the arguments of a call."""
        return self._open > 0 and self.around.state.stack[self._open - 1][0].open == b"("

    def _go_on_behind(self, byte: int) -> None:
        length = len(self._text)
        state = self._state(length)
        if len(state.stack) < self._open and self.around.closed[len(state.stack)] is Closed.NOWHERE:
            self._open, self._tail = len(state.stack), length
        elif self._is_closer(byte):
            self._end(self._tail, "the block is complete")
        else:
            self._tail = -1
            self._least = self._width + 1

    def _half_closer(self) -> int:
        """Return the number of trailing bytes that may begin a closer that the suffix already contains."""
        if not self._open or self.around.closed[self._open - 1] is Closed.NOWHERE:
            return 0
        close = self.around.state.stack[self._open - 1][0].close
        lengths = range(len(close) - 1, 0, -1)
        return next((size for size in lengths if self._text.endswith(close[:size])), 0)

    def _end_shown(self, reason: str) -> None:
        """End behind the last character that shows, if there is one."""
        if self._text.strip():
            self._end(len(self._text.rstrip()), reason)

    def _end_above(self, reason: str) -> None:
        self._end(len(self._text[: max(0, self._line)].rstrip()), reason)

    def _end(self, keep: int, reason: str) -> None:
        self.cut = Cut(len(self._text), keep, reason)
