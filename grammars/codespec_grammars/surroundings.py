"""What surrounds a cursor in code, as far as it says how a completion there ends: what is open, what was just opened,
what the text to the right closes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from codespec_grammars.contexts import TEXT_LIKE, Context, Cursor
from codespec_grammars.language import Language
from codespec_grammars.lexer import Entry, Lexer, LexState, in_text
from codespec_grammars.lexer_rules import BRACKET, STRING, LexerRules
from codespec_grammars.registry import Missing, load_grammar
from codespec_grammars.tracker import ContextTracker

AFTER = 4096  # bytes to the right that may close what is open at the cursor
MOST_CLOSERS = 64
_TRIPLE = (b'"""', b"'''")


class Closed(Enum):
    """Where something that is open at the cursor is closed to its right."""

    NOWHERE = auto()
    SAME_LINE = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A cursor in code. `before` is the window of text up to it, `state` the lexer's there, `checkpoint` its state at a
    line's end above; `closed` says of each open thing, outermost first, where it ends to the right. `opened` is true
    where a block or bracket was opened and nothing written in it yet; `opener_width` is the indent of the line that
    opened it.
    """

    data: Language
    rules: LexerRules
    before: bytes
    state: LexState
    checkpoint: LexState
    right: bytes
    below: bytes
    context: Context
    opened: bool
    opener_width: int
    closed: tuple[Closed, ...]

    @property
    def line(self) -> bytes:
        """The cursor's line up to it."""
        return self.before[self.before.rfind(b"\n") + 1 :]

    @property
    def blank(self) -> bool:
        """Whether nothing stands on the line before the cursor."""
        return not self.line.strip()

    @property
    def in_text(self) -> bool:
        """Whether the cursor lies in a string, a comment or prose."""
        return self.state.comment >= 0 or in_text(self.state) is not None or self.context in TEXT_LIKE

    def width_of(self, entry: Entry) -> int:
        """The indent of the line on which something was opened; -1 where that is out of sight."""
        return _width_at(self.before, entry[1]) if entry[1] >= 0 else -1


def read_surroundings(
    language: str, prefix: bytes, suffix: bytes = b"", *, sent: Cursor | None = None
) -> Surroundings | None:
    """The facts about the cursor between `prefix` and `suffix`; None where the language has no grammar."""
    grammar = load_grammar(language)
    if isinstance(grammar, Missing):
        return None
    tracker = ContextTracker(language, prefix, suffix, sent=sent)
    cursor, lexed = tracker.context(), tracker.lexed
    assert lexed is not None  # there is a grammar
    before, state = lexed.text, lexed.state()
    right = suffix.partition(b"\n")[0].rstrip(b"\r")
    opened, width = _opened(grammar.data, before, state, cursor)
    return Surroundings(
        data=grammar.data,
        rules=grammar.rules,
        before=before,
        state=state,
        checkpoint=lexed.checkpoint,
        right=right,
        below=next((line.rstrip() for line in suffix[:AFTER].split(b"\n")[1:] if line.strip()), b""),
        context=cursor.context,
        opened=opened,
        opener_width=width,
        closed=_find_closed(grammar.rules, before, state.stack, suffix[:AFTER]),
    )


def _opened(data: Language, before: bytes, state: LexState, cursor: Cursor) -> tuple[bool, int]:
    """Whether something was opened last and holds nothing yet, and the indent of the line with the opener."""
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
    """The text without white space and comments at its end, or a docstring, where a block's opener stands before."""
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
    """Where the suffix closes each open thing. A closer that begins its line belongs to what was opened on a line of
    the same indent: with a closer missing, the first one to the right is some outer block's.
    """
    result = [Closed.NOWHERE] * len(stack)
    if not stack:
        return ()
    marked = tuple((opener, -index - 2) for index, (opener, _) in enumerate(stack))
    closers = re.compile(b"|".join(re.escape(mark) for mark in {opener.close for opener, _ in stack}))
    first_line = suffix.find(b"\n") if b"\n" in suffix else len(suffix)
    lexer, state = Lexer(rules, suffix), LexState(stack=_still_open(marked, suffix[:first_line]))
    for found in list(closers.finditer(suffix))[:MOST_CLOSERS]:
        if found.end() <= state.pos:
            continue
        earlier, state = state, lexer.run(state, found.end())
        index = _closed_by(found, earlier, state)
        if index is None:
            continue
        line = suffix.rfind(b"\n", 0, found.start()) + 1
        if line and not suffix[line : found.start()].strip():
            index = _of_width(before, stack, index, width(suffix[line : found.start()]))
            state = LexState(state.pos, marked[:index])
        result[index] = Closed.SAME_LINE if found.start() < first_line else Closed.LATER
    return tuple(result)


def _still_open(stack: tuple[Entry, ...], right: bytes) -> tuple[Entry, ...]:
    """The stack without a string that is not closed on its line where it must be, or where only closers of code follow:
    what stands to the right is code."""
    last = stack[-1][0]
    code = not last.multiline or (right.strip() and not right.strip(b" \t\r)]};,"))
    return stack[:-1] if last.sort == STRING and code and last.close not in right else stack


def _closed_by(found: re.Match[bytes], earlier: LexState, now: LexState) -> int | None:
    """Which of the marked things the closer closed."""
    if now.closed[0] == found.start() and now.closed[1] <= -2:
        return -now.closed[1] - 2
    if len(now.stack) < len(earlier.stack) and earlier.stack[-1][0].sort != BRACKET:
        entry = earlier.stack[-1]
        return -entry[1] - 2 if entry[1] <= -2 and entry[0].close == found.group() else None
    return None


def _of_width(before: bytes, stack: tuple[Entry, ...], index: int, column: int) -> int:
    """The innermost open thing, from `index` outwards, opened on a line of that indent; `index` where there is none."""
    for outer in range(index, -1, -1):
        if stack[outer][1] >= 0 and _width_at(before, stack[outer][1]) == column:
            return outer
    return index


def _width_at(text: bytes, pos: int) -> int:
    return width(text[text.rfind(b"\n", 0, pos) + 1 :][:256])


def width(line: bytes) -> int:
    """Columns of white space that a line begins with; tabs go to the next multiple of eight."""
    return len(line[: len(line) - len(line.lstrip(b" \t"))].expandtabs(8))


def only_closer_missing(around: Surroundings) -> bool:
    """Whether what stands before the cursor is complete but for a closer that already stands to the right."""
    shut = around.closed and around.closed[-1] is Closed.SAME_LINE
    if not shut or around.in_text or around.right.strip(b" \t)]};,>\"'`"):
        return False
    line = around.line.rstrip()
    quotes = {opener.close for opener in around.rules.openers.values() if opener.sort == STRING}
    return line.endswith((b")", b"]", b"}", *quotes)) or re.search(rb"(?<![\w.])\d[\w.]*$", around.line) is not None
