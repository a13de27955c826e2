"""Collect the facts about a cursor that decide where a completion ends: open brackets and blocks, and where they close.

`find_item` and `ends_item` decide where an item of a list ends: a parameter, an argument or an element. Models often
add list items that are already to the right of the cursor, or that belong to another function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from codespec_grammars.grammar import TEXT_LIKE, Context
from codespec_grammars.language import Language
from codespec_grammars.lexer import Lexer, LexState, in_text
from codespec_grammars.lexer_rules import BRACKET, STRING, Entry, LexerRules
from codespec_grammars.tracker import ContextTracker, Cursor

AFTER = 4096  # bytes of the suffix that are searched for closers
MAX_CLOSERS = 64
_TRIPLE = (b'"""', b"'''")
MAX_ITEM = 2048  # bytes before the cursor that may belong to the item
_PAIR = re.compile(rb"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
_STRING = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'")
_NESTED = 8  # maximum depth of brackets
# A name before its type or value, as in `a: `, `mut a: ` or `key=`, but not `a ==`, `a::` or `a =>`.
_NAMED = re.compile(rb"\s*(?:[\w.$*&@]+\s+)*[*&$@.]*[\w$]+\??\s*(?::(?![:=])|=(?![=>]))")
_NO_LIST = re.compile(rb"\b(?:for|foreach|while|if|switch|with|using|catch)\s*$")  # words before a `(` without a list
_LAMBDA = re.compile(rb"\blambda\b[^:]*$")
_OPENED, _CLOSED = re.compile(rb"\w<"), re.compile(rb"(?<![-=])>")  # angle brackets around types


class Closed(Enum):
    """Where the suffix closes a bracket, string or comment that is open at the cursor."""

    NOWHERE = auto()
    SAME_LINE = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text around a cursor in code."""

    rules: LexerRules
    before: bytes  # window of text that ends at the cursor
    state: LexState  # at the cursor
    checkpoint: LexState  # at the end of a line above
    right: bytes  # rest of the cursor's line
    below: bytes  # next non-blank line
    context: Context
    opened: bool  # whether the cursor is in an empty block or bracket
    opener_width: int  # indent in columns of the line that opened the block or bracket
    closed: tuple[Closed, ...]  # for each bracket, string or comment that is open at the cursor, outermost first

    @property
    def line(self) -> bytes:
        """The current line up to the cursor."""
        return self.before[self.before.rfind(b"\n") + 1 :]

    @property
    def blank(self) -> bool:
        """Whether the line is blank before the cursor."""
        return not self.line.strip()

    @property
    def in_text(self) -> bool:
        """Whether the cursor is in a string, a comment or prose."""
        return self.state.comment >= 0 or in_text(self.state) is not None or self.context in TEXT_LIKE


def read_surroundings(
    language: str, prefix: bytes, suffix: bytes = b"", *, sent: Cursor | None = None
) -> Surroundings | None:
    """Return the surroundings of the cursor between `prefix` and `suffix`, or None if the language has no grammar."""
    tracker = ContextTracker(language, prefix, suffix, sent=sent)
    grammar, lexed = tracker.grammar, tracker.lexed
    if grammar is None or lexed is None:
        return None
    cursor = tracker.context(parse=False)  # the lexer and the language server's cursor are enough
    before, state = lexed.text, lexed.state()
    opened, width = _opened(grammar.rules.data, before, state, cursor)
    return Surroundings(
        rules=grammar.rules,
        before=before,
        state=state,
        checkpoint=lexed.checkpoint,
        right=suffix.partition(b"\n")[0].rstrip(b"\r"),
        below=next((line.rstrip() for line in suffix[:AFTER].split(b"\n")[1:] if line.strip()), b""),
        context=cursor.context,
        opened=opened,
        opener_width=width,
        closed=_find_closed(grammar.rules, before, state.stack, suffix[:AFTER]),
    )


def _opened(data: Language, before: bytes, state: LexState, cursor: Cursor) -> tuple[bool, int]:
    """Return whether the cursor is in an empty block or bracket, and the indent of the line that opened it."""
    line = before.rfind(b"\n") + 1
    if before[line:].strip():
        brackets = state.brackets
        bracket = bool(brackets) and brackets[-1][0].block and brackets[-1][1] == len(before.rstrip()) - 1
        return bracket or cursor.context is Context.BLOCK_START, width(before[line:])
    above = _without_introduction(data, before[:line])
    start = above.rfind(b"\n") + 1
    own = width(above[start:])
    if len(above) < len(before[:line].rstrip()):
        return True, own
    characters = len(above[start:]) - len(above[start:].lstrip(b" \t"))
    return bool(above) and cursor.indent > characters, own


def _without_introduction(data: Language, text: bytes) -> bytes:
    """Return the text without the comments or docstring at its end, if these follow a block opener."""
    text = above = text.rstrip()
    marks = tuple(mark.encode() for mark in data.line_comments)
    while marks and above[above.rfind(b"\n") + 1 :].lstrip().startswith(marks):
        above = above[: above.rfind(b"\n") + 1].rstrip()
    if data.docstrings and above.endswith(_TRIPLE):
        start = above.rfind(above[-3:], 0, len(above) - 3)
        if start >= 0 and not above[above.rfind(b"\n", 0, start) + 1 : start].strip(b" \trRuUbB"):
            above = above[:start].rstrip(b" \trRuUbB").rstrip()
    openers = tuple(mark.encode() for mark in data.block_openers)
    return above if openers and above.endswith(openers) else text


def _find_closed(rules: LexerRules, before: bytes, stack: tuple[Entry, ...], suffix: bytes) -> tuple[Closed, ...]:
    """Return where the suffix closes each open bracket, string or comment."""
    # A missing delimiter does not affect the others: a closing delimiter at the start of a line closes the bracket
    # that was opened on a line with the same indent.
    result = [Closed.NOWHERE] * len(stack)
    if not stack:
        return ()
    marked = tuple((opener, -index - 2) for index, (opener, _) in enumerate(stack))
    marks = sorted({opener.close for opener, _ in stack}, key=len, reverse=True)
    closers = re.compile(b"|".join(map(re.escape, marks)))
    right = suffix.partition(b"\n")[0]
    lexer, state = Lexer(rules, suffix), LexState(stack=_still_open(marked, right))
    for closer in islice(closers.finditer(suffix), MAX_CLOSERS):
        if closer.end() <= state.pos:
            continue
        earlier, state = state, lexer.run(state, closer.end())
        index = _closed_by(closer, earlier, state)
        if index < 0:
            continue
        line = suffix.rfind(b"\n", 0, closer.start()) + 1
        if line and not suffix[line : closer.start()].strip():
            column = width(suffix[line : closer.start()])
            alike = (outer for outer in range(index, -1, -1) if width_at(before, stack[outer][1]) == column)
            index = next(alike, index)
            state = LexState(state.pos, marked[:index])
        result[index] = Closed.SAME_LINE if closer.start() < len(right) else Closed.LATER
    return tuple(result)


def _still_open(stack: tuple[Entry, ...], right: bytes) -> tuple[Entry, ...]:
    """Return the stack without its innermost string if the rest of the line is code and does not close it."""
    # Code follows a single-line string; a multi-line string is followed by code if only closing brackets are left.
    last = stack[-1][0]
    code = not last.multiline or (right.strip() and not right.strip(b" \t\r)]};,"))
    return stack[:-1] if last.sort == STRING and code and last.close not in right else stack


def _closed_by(closer: re.Match[bytes], earlier: LexState, now: LexState) -> int:
    """Return the stack index of the bracket or string that the match `closer` closed; a negative number means none."""
    pos = now.closed[1] if now.closed[0] == closer.start() else 0
    if pos >= 0 and len(now.stack) < len(earlier.stack):
        opener, opened = earlier.stack[-1]
        pos = opened if opener.sort != BRACKET and opener.close == closer.group() else pos
    return -pos - 2


def width_at(text: bytes, pos: int) -> int:
    """Return the indent, in columns, of the line that contains a position; -1 for a negative position."""
    return width(text[text.rfind(b"\n", 0, pos) + 1 :][:256]) if pos >= 0 else -1


def width(line: bytes) -> int:
    """Return the indent of a line in columns, with a tab stop every eight columns."""
    return len(line[: len(line) - len(line.lstrip(b" \t"))].expandtabs(8))


def only_closer_missing(around: Surroundings) -> bool:
    """Return whether the code before the cursor only lacks closing brackets that the rest of the line contains."""
    shut = around.closed and around.closed[-1] is Closed.SAME_LINE
    if not shut or around.in_text or around.right.strip(b" \t)]};,>\"'`"):
        return False
    line = around.line.rstrip()
    quotes = {opener.close for opener in around.rules.openers.values() if opener.sort == STRING}
    return line.endswith((b")", b"]", b"}", *quotes)) or re.search(rb"(?<![\w.])\d[\w.]*$", around.line) is not None


def find_item(around: Surroundings) -> bytes | None:
    """Return the part before the cursor of the item after which the completion ends, or None if more items may follow.

    The completion ends with the item if a comma is already to the right of the cursor, or if the item is in parentheses
    and begins with the name of a parameter or argument. Strings and bracketed parts are removed from the returned text.
    """
    brackets = around.state.brackets
    if not brackets or around.in_text or around.state.stack[-1] != brackets[-1]:
        return None
    opener, at = brackets[-1]
    if opener.block or at < 0 or len(around.before) - at > MAX_ITEM:
        return None
    if _NO_LIST.search(around.before, max(0, at - 16), at):
        return None
    text = _STRING.sub(b"", around.before[at + 1 :])
    for _ in range(_NESTED):
        text = _PAIR.sub(b"", text)
    begun = text.rpartition(b",")[2]
    named = opener.open == b"(" and _NAMED.match(begun) is not None
    return begun if named or around.right.lstrip().startswith(b",") else None


def ends_item(item: bytes) -> bool:
    """Return whether a comma after `item` ends the item, rather than a type in angle brackets or a lambda parameter."""
    return _LAMBDA.search(item) is None and len(_OPENED.findall(item)) <= len(_CLOSED.findall(item))
