"""Find the context at the tip of a text that may grow.

Pipeline: lexer → parsable text → tree → decision. A tracker whose text has grown gives the same result as a fresh one.
A cursor that a language server sent holds until the text grows, and opens for the lexer what the window doesn't show.

The tree decides if there is no error between the tip and the captured node. Otherwise the lexer does: it reads left to
right, so text after the tip can't mislead it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from codespec_grammars import workers
from codespec_grammars.contexts import TEXT_LIKE, Context, Cursor
from codespec_grammars.language import Language
from codespec_grammars.lexer import LexState, in_text
from codespec_grammars.lexer_rules import COMMENT, STRING, Entry, LexerRules, Opener
from codespec_grammars.queries import NOTHING, Captures
from codespec_grammars.registry import Grammar, Missing, load_grammar
from codespec_grammars.statement import begins_with, expected_indent, is_word, statement_start, word_before
from codespec_grammars.window import LexedWindow, Repairer, heads, parse_start, repaired, suffix_window

# With more entries open than this, nothing is parsed: walking up a tree is quadratic in its depth.
DEEPEST = 128
_AROUND = frozenset({Context.ARGUMENTS, Context.IMPORT, Context.SIGNATURE})
_PLAIN = frozenset({Context.STATEMENT, Context.UNKNOWN})
_HEADS = (Context.IMPORT, Context.SIGNATURE)
_LOOSE = (Context.STATEMENT, Context.ARGUMENTS)
_VALUE = re.compile(rb"[^=!<>]=[^=>]|\breturn\b")  # parentheses after this belong to a call, not to a signature
_STRING_START = re.compile(rb"[ \t]*[A-Za-z]{0,3}$")


class ContextTracker:
    """Finds the context at the tip of `prefix` plus the appended bytes, with `suffix` to the right of the tip.

    `language` is a name or an editor's language id; the context of an unknown language is always `unknown`, and `note`
    gives the reason. `sent` is the language server's view of the cursor, which holds until something is appended.
    """

    def __init__(self, language: str, prefix: bytes, suffix: bytes = b"", *, sent: Cursor | None = None) -> None:
        grammar = load_grammar(language)
        self.note = grammar.note if isinstance(grammar, Missing) else ""
        self._sent = sent
        self._tracked: _Tracked | None = None
        if isinstance(grammar, Grammar):
            self._tracked = _Tracked(grammar, prefix, suffix)
            if sent is not None:
                self._tracked.seed(sent)

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

    @property
    def broke_parser(self) -> bool:
        """Whether the text broke the parser. It is not parsed again."""
        return self._tracked is not None and self._tracked.broke

    def advance(self, data: bytes) -> None:
        """Append bytes at the tip. They may end inside a UTF-8 character."""
        if self._tracked:
            self._tracked.lexed.append(data)
        elif data:
            self._sent = None

    def context(self, *, parse: bool = True) -> Cursor:
        """Return the cursor at the tip. Without `parse`, use the lexer only, which needs no other process."""
        if self._tracked is None:
            return self._sent or Cursor()
        return self._tracked.cursor(parse)


class _Tracked:
    """The state of a tracker whose language has a grammar."""

    def __init__(self, grammar: Grammar, prefix: bytes, suffix: bytes) -> None:
        self._grammar = grammar
        self.lexed = LexedWindow(grammar.rules, prefix)
        self._suffix = suffix
        self._repairer = Repairer(grammar.data, grammar.rules)
        self.bytes_parsed = self.given_up = 0
        self.broke = False
        self._sent: Sent | None = None
        self._answer: tuple[tuple[int, bool], Cursor] | None = None

    def seed(self, sent: Cursor) -> None:
        """Begin with a sent cursor, and open the entries that the window doesn't show. Parses nothing."""
        rules = self._grammar.rules
        outer, text = unseen(sent, self.cursor(parse=False), rules, self.lexed.state())
        self.lexed.seed(outer + text)
        if text and self.lexed.state().stack != outer + text:  # it ends in the window, so it is not around the tip
            self.lexed.seed(outer)
        self._sent = Sent(sent, self.lexed.seeded)

    def cursor(self, parse: bool = True) -> Cursor:
        """Return the cursor at the tip, cached until the text changes."""
        key = (self.lexed.version, parse)
        if self._answer is None or self._answer[0] != key:
            self._answer = (key, self._work_out(parse))
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
        if len(at.state.stack) > DEEPEST or self.broke:
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
        fixed = self._repairer.fix(at.text, at.tip, at.state, suffix)
        before = _clean(before)
        return self._find(before, fixed.placeholder, _clean(fixed.rest))

    def _find(self, before: bytes, placeholder: bytes, rest: bytes) -> Captures:
        """Look up the placeholder. A text that broke the parser would break it again at the next key: no retries."""
        text = before + placeholder + rest
        self.bytes_parsed += len(text)
        try:
            captures = workers.look_up(
                self._grammar.data.name, text.decode(), len(before), len(placeholder), len(before.rstrip())
            )
        except workers.Broken:
            self.broke, captures = True, None
        self.given_up += captures is None
        return captures or NOTHING


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


def unseen(
    sent: Cursor, own: Cursor, rules: LexerRules, state: LexState
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return the brackets around a sent cursor that the window lacks, and the text around it if `state` has none."""
    outer = sent.open_brackets.removesuffix(own.open_brackets) if own.open_brackets else sent.open_brackets
    brackets = tuple((rules.openers[mark], -1) for mark in (char.encode() for char in outer) if mark in rules.openers)
    seen = in_text(state) is not None or state.comment >= 0
    text = None if seen else _text_opener(sent.context, rules)
    return brackets, ((text, -1),) if text else ()


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


@dataclass(frozen=True, slots=True)
class Tip:
    """A text, the position of the tip in it, and the lexer state there."""

    data: Language
    rules: LexerRules
    text: bytes
    tip: int
    state: LexState


def decide(at: Tip, captures: Captures) -> Context:
    """Return the context at the tip."""
    inside = captures.inside if captures.clean else None
    text = _text_by_lexer(at) if captures.errors or inside is Context.STRING else None
    if inside is Context.STRING and text is Context.DOCSTRING:
        return text
    if inside in TEXT_LIKE and (text or not captures.errors or inside is Context.FREE_TEXT):
        return inside
    if text:
        return Context.IMPORT if text is Context.STRING and _imports(at) else text
    inside = None if inside in TEXT_LIKE else inside
    line = at.text[at.text.rfind(b"\n", 0, at.tip) + 1 : at.tip]
    stripped = line.rstrip()
    token = _token(at, captures, stripped) if stripped else None
    if token is Context.BLOCK_START:
        return token
    if captures.errors:
        inside = _corrected(at, inside)
    if (
        stripped
        and not captures.errors
        and len(stripped) == len(line)
        and captures.ended in _HEADS
        and not stripped.endswith(b"}")
    ):
        inside = captures.ended
    if inside in _HEADS:
        return inside
    if not stripped:
        return Context.INDENT
    if is_word(at.text[at.tip - 1]):
        return Context.IDENTIFIER
    return token or inside or Context(at.data.default)


def _token(at: Tip, captures: Captures, stripped: bytes) -> Context | None:
    """Return the context given by the last token on the line, or by its bytes if the tree has errors."""
    if word_before(at.text, at.tip).decode("utf-8", "replace") in at.data.block_openers:
        return Context.BLOCK_START
    if captures.token or not captures.errors:
        return captures.token
    if _opens_block(at, stripped):
        return Context.BLOCK_START
    if stripped.endswith(tuple(pair[1].encode() for pair in at.data.brackets)):
        return Context.CLOSING
    if stripped.endswith(tuple(mark.encode() for mark in at.data.members)):
        return Context.IDENTIFIER
    return Context.OPERATOR if stripped[-1] in at.data.operators.encode() else None


def _opens_block(at: Tip, stripped: bytes) -> bool:
    if not stripped.endswith(tuple(mark.encode() for mark in at.data.block_openers)):
        return False
    brackets = at.state.brackets
    if brackets and not brackets[-1][0].block:
        return False
    return stripped[-1:] != b":" or _head(at, at.rules.heads)


def _text_by_lexer(at: Tip) -> Context | None:
    """Return the lexer's view if the tip is in a comment, string or docstring, else None."""
    if at.state.comment >= 0:
        documents = at.rules.docs and at.text.startswith(at.rules.docs, at.state.comment)
        return Context.DOCSTRING if documents else Context.COMMENT
    opener = in_text(at.state)
    if opener is None:
        return None
    start = at.state.stack[-1][1]
    if opener.sort == COMMENT:
        documents = at.rules.docs and at.text.startswith(at.rules.docs, max(start, 0))
        return Context.DOCSTRING if documents else Context.COMMENT
    if at.data.docstrings and opener.multiline and start >= 0 and len(at.state.stack) == 1:
        line = at.text.rfind(b"\n", 0, start) + 1
        before = _without_comments(at, at.text[:line].rstrip())
        if _STRING_START.match(at.text[line:start]) and (not before or before.endswith(b":")):
            return Context.DOCSTRING
    return Context.STRING


def _without_comments(at: Tip, text: bytes) -> bytes:
    """Return the text without its trailing comment lines."""
    while text:
        line = text.rfind(b"\n") + 1
        if not text[line:].lstrip().startswith(at.rules.line_comments):
            break
        text = text[:line].rstrip()
    return text


def _by_lexer(at: Tip) -> Context | None:
    """Return import, signature or arguments, by the statement's first word and the innermost bracket."""
    if _imports(at):
        return Context.IMPORT
    if _head(at, at.rules.signatures):
        return Context.SIGNATURE
    return Context.ARGUMENTS if _in_call(at) else None


def _corrected(at: Tip, inside: Context | None) -> Context | None:
    """Correct the context from a tree with errors by the lexer's view."""
    if inside is None or (inside in _LOOSE and _open_here(at) < 2):
        inside = _by_lexer(at) or inside
    called = _in_call(at)
    if inside is Context.ARGUMENTS and called is False:
        return Context.STATEMENT
    if inside is Context.SIGNATURE and called and _calls(at):
        return Context.ARGUMENTS
    return inside


def _in_call(at: Tip) -> bool | None:
    """Return whether the innermost bracket is a `(` after a word, or None if no bracket is open in the statement."""
    brackets = at.state.brackets
    if not brackets or brackets[-1][0].block:
        return None
    return brackets[-1][0].open == b"(" and _after_word(at.text, brackets[-1][1])


def _calls(at: Tip) -> bool:
    """Return whether the innermost bracket follows a name in an assigned or returned value: a call, not a signature."""
    opened = at.state.brackets[-1][1]
    before = at.text[statement_start(at.text, opened, at.state.brackets[:-1]) : opened]
    name = word_before(at.text, opened).decode("utf-8", "replace")
    return bool(name) and name not in at.data.signature_words and _VALUE.search(before) is not None


def _imports(at: Tip) -> bool:
    """Return whether the tip is in an import, including inside its brackets, as in `import { a,`."""
    if at.rules.imports is None or _head(at, at.rules.imports):
        return at.rules.imports is not None
    brackets = at.state.brackets
    if not brackets or brackets[-1][1] < 0:
        return False
    start = statement_start(at.text, brackets[-1][1], brackets[:-1])
    return at.rules.imports.match(at.text, start, at.tip) is not None


def _open_here(at: Tip) -> int:
    """Return the number of open brackets that belong to the current statement."""
    count = 0
    for opener, _ in reversed(at.state.brackets):
        if opener.block:
            break
        count += 1
    return count


def _after_word(text: bytes, at: int) -> bool:
    end = at - 1 if text[at - 1 : at] == b"!" else at  # Rust's macros
    return end > 0 and (is_word(text[end - 1]) or text[end - 1 : at] in (b")", b"]", b">"))


def _head(at: Tip, words: re.Pattern[bytes] | None) -> bool:
    """Return whether the tip is in the head of a statement that begins with one of the words."""
    return words is not None and begins_with(words, at.text, at.tip, at.state, at.rules.heads is not None)
