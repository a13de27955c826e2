"""Track the context at the tip of a text that grows and is rolled back.

Pipeline: lexer → parsable text → tree → decision, reconciled with the cursor that a language server sent. All state is
a cache: a tracker that has followed a text gives the same result as a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_grammars import look_ups
from codespec_grammars.contexts import TEXT_LIKE, Context, Cursor
from codespec_grammars.decide import Tip, decide
from codespec_grammars.lexer import COMMENT, STRING, Entry, LexerRules, LexState, Opener
from codespec_grammars.queries import NOTHING, Captures
from codespec_grammars.registry import Grammar, Missing, load_grammar
from codespec_grammars.statement import expected_indent
from codespec_grammars.window import LexedWindow, Mender, heads, parse_start, repaired, suffix_window

# With more entries open than this, nothing is parsed: walking up a tree is quadratic in its depth.
DEEPEST = 128
_AROUND = frozenset({Context.ARGUMENTS, Context.IMPORT, Context.SIGNATURE})
_PLAIN = frozenset({Context.STATEMENT, Context.UNKNOWN})


class ContextTracker:
    """Tracks the context at the tip of `prefix` plus the appended bytes, with `suffix` to the right of the tip.

    `language` is a name or an editor's language id; the context of an unknown language is always `unknown`, and `note`
    gives the reason. `sent` is the language server's view of the cursor before anything is appended. It takes
    precedence if the tracker's window is too small.
    """

    def __init__(self, language: str, prefix: bytes, suffix: bytes = b"", *, sent: Cursor | None = None) -> None:
        grammar = load_grammar(language)
        self.note = grammar.note if isinstance(grammar, Missing) else ""
        self._length = 0
        self._sent = sent
        self._tracked: _Tracked | None = None
        if isinstance(grammar, Grammar):
            self._tracked = _Tracked(grammar, prefix, suffix)
            if sent is not None:
                self._tracked.seed(reconcile(sent, self._tracked.cursor(), grammar.rules))

    @property
    def appended(self) -> int:
        """The number of bytes that were appended and not rolled back."""
        return self._length

    @property
    def lexed(self) -> LexedWindow | None:
        """The lexed window up to the tip, or None if the language has no grammar."""
        return self._tracked.lexed if self._tracked else None

    @property
    def bytes_parsed(self) -> int:
        """The number of bytes parsed so far."""
        return self._tracked.bytes_parsed if self._tracked else 0

    @property
    def given_up(self) -> int:
        """The number of parses that were abandoned so far because they took too long or broke the parser."""
        return self._tracked.given_up if self._tracked else 0

    def advance(self, data: bytes) -> None:
        """Append bytes at the tip. They may end inside a UTF-8 character."""
        self._length += len(data)
        if self._tracked:
            self._tracked.lexed.append(data)

    def rollback(self, length: int) -> None:
        """Cut the appended text back to `length` bytes. Raises ValueError if it is shorter than that."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll back to {length} bytes: {self._length} were appended")
        self._length = length
        if self._tracked:
            self._tracked.lexed.cut(length)

    def context(self, *, parse: bool = True) -> Cursor:
        """Return the cursor at the tip. Without `parse`, use the lexer only, which needs no other process."""
        if self._tracked is None:
            return self._sent if self._sent and not self._length else Cursor()
        return self._tracked.cursor(parse)


class _Tracked:
    """The state of a tracker whose language has a grammar."""

    def __init__(self, grammar: Grammar, prefix: bytes, suffix: bytes) -> None:
        self._grammar = grammar
        self.lexed = LexedWindow(grammar.rules, prefix)
        self._suffix = suffix
        self._mender = Mender(grammar.data, grammar.rules)
        self.bytes_parsed = self.given_up = 0
        self._broke = False
        self._sent: Sent | None = None
        self._answer: tuple[tuple[int, bool], Cursor] | None = None

    def seed(self, sent: Sent | None) -> None:
        """Apply the part of a sent cursor that the window doesn't show."""
        self._sent = sent
        self._answer = None
        if sent is not None:
            self.lexed.seed(sent.open)

    def cursor(self, parse: bool = True) -> Cursor:
        """Return the cursor at the tip, cached until the text changes."""
        asked = (self.lexed.version, parse)
        if self._answer is None or self._answer[0] != asked:
            self._answer = (asked, self._work_out(parse))
        return self._answer[1]

    def _work_out(self, parse: bool) -> Cursor:
        if self._sent and not self.lexed.appended:
            return self._sent.cursor
        lexed, data = self.lexed, self._grammar.data
        state = lexed.state()
        at = Tip(data, self._grammar.rules, lexed.text, lexed.tip, state)
        context = decide(at, self._look_up(at) if parse else NOTHING)
        if self._sent:
            context = self._sent.correct(context, state)
        brackets = b"".join(opener.open[-1:] for opener, _ in state.brackets).decode("ascii", "replace")
        indent = expected_indent(data, at.rules, lexed.text, lexed.tip, state, context is Context.BLOCK_START)
        return Cursor(context, brackets, indent, data.name)

    def _look_up(self, at: Tip) -> Captures:
        if len(at.state.stack) > DEEPEST or self._broke:
            return NOTHING
        start = parse_start(self.lexed.lexer, at.tip, at.state.stack)
        if start is None:
            return NOTHING
        opened = heads(self.lexed.lexer, at.state.stack, start)
        before = opened + repaired(self.lexed.lexer, start, at.tip)
        if opened or not self.lexed.begins_file(start):
            opening = at.data.indented_opening if before[:1] in (b" ", b"\t") else at.data.window_opening
            before = opening.encode() + before
        suffix = suffix_window(at.rules, self._suffix, not at.state.comment >= 0 and not at.state.stack)
        mended = self._mender.mend(at.text, at.tip, at.state, suffix)
        before = _clean(before)
        return self._find(before, mended.placeholder, _clean(mended.rest))

    def _find(self, before: bytes, placeholder: bytes, rest: bytes) -> Captures:
        """Look up the placeholder. A text that broke the parser would break it again at the next key: no retries."""
        text = before + placeholder + rest
        self.bytes_parsed += len(text)
        try:
            found = look_ups.find(
                self._grammar.data.name, text.decode(), len(before), len(placeholder), len(before.rstrip())
            )
        except look_ups.Broken:
            self._broke, found = True, None
        self.given_up += found is None
        return found or NOTHING


def _clean(text: bytes) -> bytes:
    """Remove invalid UTF-8 and replace NUL bytes with spaces.

    Queries read nodes as text, and a tip may be inside a character. Some grammars' scanners are slow on NUL bytes.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="ignore").encode()
    return text.replace(b"\0", b" ")


@dataclass(frozen=True, slots=True)
class Sent:
    """A sent cursor, with the entries that were opened before the start of the window."""

    cursor: Cursor
    open: tuple[Entry, ...]

    def correct(self, context: Context, state: LexState) -> Context:
        """Return the sent context if the tip is in text or plain code directly inside the sent entries."""
        if not self.open or state.stack != self.open:
            return context
        sent = self.cursor.context
        alike = (context in TEXT_LIKE and sent in TEXT_LIKE) or (context in _PLAIN and sent in _AROUND)
        return sent if alike else context


def reconcile(sent: Cursor, own: Cursor, rules: LexerRules) -> Sent | None:
    """Return the part of the sent cursor that the window lacks, or None if it lacks nothing."""
    if (sent.context, sent.open_brackets) == (own.context, own.open_brackets):
        return None
    outer = sent.open_brackets.removesuffix(own.open_brackets) if own.open_brackets else sent.open_brackets
    entries = [(rules.openers[mark], -1) for mark in (char.encode() for char in outer) if mark in rules.openers]
    text = _text_opener(sent.context, rules) if sent.context != own.context else None
    if text:
        entries.append((text, -1))
    return Sent(sent, tuple(entries))


def _text_opener(context: Context, rules: LexerRules) -> Opener | None:
    """Return the opener that must precede the window for the cursor to be in such a text.

    It is the first multi-line opener of that kind, or None for a context that isn't text.
    """
    openers = [opener for opener in rules.openers.values() if opener.multiline]
    if context is Context.COMMENT:
        return next((item for item in openers if item.sort == COMMENT and not item.documents), None)
    if context is Context.DOCSTRING:
        documents = [item for item in openers if item.documents]
        return next(iter(documents), None) or next((item for item in openers if item.sort == STRING), None)
    if context is Context.STRING:
        return next((item for item in openers if item.sort == STRING), None)
    return None
