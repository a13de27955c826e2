"""Find the syntactic context at the end of a text that may grow, and the indent of the next statement.

A tracker whose text has grown gives the same result as a new tracker for the whole text. The context is taken from the
syntax tree if the tree has no error between the cursor and the captured node. If there is such an error, the context is
taken from the lexer, which does not depend on text after the cursor. Indents are counted in characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import NamedTuple

from codespec_grammars import workers
from codespec_grammars.grammar import (
    NOTHING,
    TEXT_LIKE,
    Captures,
    Context,
    heads,
    load_grammar,
    mended,
    parse_start,
    repaired,
    suffix_window,
)
from codespec_grammars.language import Language
from codespec_grammars.lexer import LexedWindow, LexState, in_text, indent_end, is_word, statement_start, word_before
from codespec_grammars.lexer_rules import BRACKET, COMMENT, STRING, Entry, LexerRules

DEEPEST = 128  # open entries; with more, nothing is parsed, because walking up a tree is quadratic in its depth
_AROUND = frozenset({Context.ARGUMENTS, Context.IMPORT, Context.SIGNATURE})
_PLAIN = frozenset({Context.STATEMENT, Context.UNKNOWN})
_HEADS = (Context.IMPORT, Context.SIGNATURE)
_LOOSE = (Context.STATEMENT, Context.ARGUMENTS)
_VALUE = re.compile(rb"[^=!<>]=[^=>]|\breturn\b")  # parentheses after this belong to a call, not to a signature
_STRING_START = re.compile(rb"[ \t]*[A-Za-z]{0,3}$")
LOOKED_AT = 1536  # bytes before the cursor from which the indent unit is inferred
_INDENTED = re.compile(rb"^([ \t]+)[^\s]", re.M)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The syntactic context at a cursor."""

    context: Context = Context.UNKNOWN
    open_brackets: str = ""  # brackets open at the cursor, outermost first
    indent: int = 0  # expected indent of the next statement, in characters


class ContextTracker:
    """Finds the context at a cursor between a prefix, which may grow, and a suffix.

    `language` is a name or an editor's language id; if the language has no grammar, the context is always `unknown`.
    `sent` is the cursor as described by the language server, which is valid until bytes are appended.
    """

    def __init__(self, language: str, prefix: bytes, suffix: bytes = b"", *, sent: Cursor | None = None) -> None:
        self.grammar = load_grammar(language)
        self._suffix = suffix
        self.lexed = LexedWindow(self.grammar.rules, prefix) if self.grammar else None
        self.bytes_parsed = 0
        self.given_up = 0  # number of parses that took too long or broke the parser
        self.broke_parser = False  # if true, the text is not parsed again
        self._sent: Cursor | None = None
        self._answer: tuple[tuple[int, bool], Cursor] | None = None
        if self.lexed is not None and sent is not None:
            self.lexed.seed(*unseen(sent, self.context(parse=False), self.lexed))
        self._sent = sent

    def advance(self, data: bytes) -> None:
        """Append bytes, which may end inside a UTF-8 character."""
        if self.lexed is not None:
            self.lexed.append(data)
        elif data:
            self._sent = None

    def context(self, *, parse: bool = True) -> Cursor:
        """Return the context at the cursor. If `parse` is false, the context is taken from the lexer alone."""
        if self.grammar is None or self.lexed is None:
            return self._sent or Cursor()
        if self._sent and not self.lexed.appended:
            return self._sent
        key = (self.lexed.version, parse)
        if self._answer is None or self._answer[0] != key:
            tip = Tip(self.grammar.rules, self.lexed.text, self.lexed.state())
            self._answer = (key, self._work_out(tip, self.lexed, parse))
        return self._answer[1]

    def _work_out(self, at: Tip, lexed: LexedWindow, parse: bool) -> Cursor:
        context = decide(at, self._look_up(at, lexed) if parse else NOTHING)
        if self._sent and lexed.seeded and at.state.stack == lexed.seeded:
            sent = self._sent.context  # still valid in text or plain code that is in the same innermost entry
            alike = (context in TEXT_LIKE and sent in TEXT_LIKE) or (context in _PLAIN and sent in _AROUND)
            context = sent if alike else context
        brackets = b"".join(opener.open[-1:] for opener, _ in at.state.brackets).decode("ascii", "replace")
        indent = expected_indent(at.rules, at.text, at.state, context is Context.BLOCK_START)
        return Cursor(context, brackets, indent)

    def _look_up(self, at: Tip, lexed: LexedWindow) -> Captures:
        stack = at.state.stack
        start = None if len(stack) > DEEPEST or self.broke_parser else parse_start(lexed.lexer, stack)
        if start is None:
            return NOTHING
        opened = heads(lexed.lexer, stack, start)
        before = opened + repaired(lexed.lexer, start)
        if opened or not lexed.begins_file(start):
            opening = at.rules.data.indented_opening if before[:1] in (b" ", b"\t") else at.rules.data.window_opening
            before = opening.encode() + before
        suffix = suffix_window(at.rules, self._suffix, not at.state.comment >= 0 and not stack)
        placeholder, rest = mended(at.rules, at.text, at.state, suffix)
        before, rest = _clean(before), _clean(rest)
        text = before + placeholder + rest
        self.bytes_parsed += len(text)
        try:
            captures = workers.look_up(
                at.rules.data.name, text.decode(), len(before), len(placeholder), len(before.rstrip())
            )
        except workers.WorkerDied:
            self.broke_parser, captures = True, None
        self.given_up += captures is None
        return captures or NOTHING


def _clean(text: bytes) -> bytes:
    """Remove invalid UTF-8, which queries cannot read, and replace NUL bytes, on which some grammars are slow."""
    return text.decode(errors="ignore").encode().replace(b"\0", b" ")


def unseen(sent: Cursor, own: Cursor, lexed: LexedWindow) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return the brackets, and the string or comment, that are open according to `sent` but begin above the window."""
    # The first multi-line opener that fits the context of `sent` represents the string or comment.
    openers, state = lexed.rules.openers, lexed.state()
    outer = sent.open_brackets.removesuffix(own.open_brackets)
    brackets = tuple((openers[mark], -1) for mark in (char.encode() for char in outer) if mark in openers)
    texts = [opener for opener in openers.values() if opener.multiline and opener.sort != BRACKET]
    found = [opener for opener in texts if opener.sort == STRING]
    if sent.context is Context.COMMENT:
        found = [opener for opener in texts if opener.sort == COMMENT and not opener.documents]
    elif sent.context is Context.DOCSTRING:
        found = [opener for opener in texts if opener.documents] or found
    elif sent.context is not Context.STRING:
        found = []
    seen = in_text(state) is not None or state.comment >= 0
    return brackets, () if seen else tuple((opener, -1) for opener in found[:1])


class Tip(NamedTuple):
    """The text before a cursor, and the lexer state at the cursor."""

    rules: LexerRules
    text: bytes
    state: LexState


def decide(at: Tip, captures: Captures) -> Context:
    """Return the context at a cursor from the captures of the tree and from the lexer state."""
    inside = captures.inside if captures.clean else None
    text = _text_by_lexer(at) if captures.errors or inside is Context.STRING else None
    if inside is Context.STRING and text is Context.DOCSTRING:
        return text
    if inside in TEXT_LIKE and (text or not captures.errors or inside is Context.FREE_TEXT):
        return inside
    if text:
        return Context.IMPORT if text is Context.STRING and _imports(at) else text
    inside = None if inside in TEXT_LIKE else inside
    line = at.text[at.text.rfind(b"\n") + 1 :]
    stripped = line.rstrip()
    token = _token(at, captures, stripped) if stripped else None
    if token is Context.BLOCK_START:
        return token
    if captures.errors:
        inside = _corrected(at, inside)
    if inside in _HEADS:
        return inside
    if not stripped:
        return Context.INDENT
    if is_word(at.text[-1]):
        return Context.IDENTIFIER
    return token or inside or Context(at.rules.data.default)


def _token(at: Tip, captures: Captures, stripped: bytes) -> Context | None:
    """Return the context after the last token on the line, determined from the text if the tree has errors."""
    if word_before(at.text).decode("utf-8", "replace") in at.rules.data.block_openers:
        return Context.BLOCK_START
    if captures.token or not captures.errors:
        return captures.token
    data, brackets = at.rules.data, at.state.brackets
    opens = stripped.endswith(tuple(mark.encode() for mark in data.block_openers))
    opens = opens and (not brackets or brackets[-1][0].block)
    if opens and (not stripped.endswith(b":") or _head(at, at.rules.heads)):
        return Context.BLOCK_START
    if stripped.endswith(tuple(pair[1].encode() for pair in data.brackets)):
        return Context.CLOSING
    if stripped.endswith(tuple(mark.encode() for mark in data.members)):
        return Context.IDENTIFIER
    return Context.OPERATOR if stripped[-1] in data.operators.encode() else None


def _text_by_lexer(at: Tip) -> Context | None:
    """Return the context according to the lexer in a comment, string or docstring, or None elsewhere."""
    opener, start = in_text(at.state), at.state.comment
    if opener is not None and start < 0:
        start = at.state.stack[-1][1]
    if at.state.comment >= 0 or (opener is not None and opener.sort == COMMENT):
        documents = at.text.startswith(at.rules.docs, max(start, 0))
        return Context.DOCSTRING if documents else Context.COMMENT
    if opener is None:
        return None
    if at.rules.data.docstrings and opener.multiline and start >= 0 and len(at.state.stack) == 1:
        line = at.text.rfind(b"\n", 0, start) + 1
        before = at.text[:line].rstrip()
        while before and before[before.rfind(b"\n") + 1 :].lstrip().startswith(at.rules.line_comments):
            before = before[: before.rfind(b"\n") + 1].rstrip()
        if _STRING_START.match(at.text[line:start]) and (not before or before.endswith(b":")):
            return Context.DOCSTRING
    return Context.STRING


def _corrected(at: Tip, inside: Context | None) -> Context | None:
    """Correct a context from a tree with errors, using the first word and the brackets of the statement."""
    called = _in_call(at)
    here = takewhile(lambda entry: not entry[0].block, reversed(at.state.brackets))
    if inside is None or (inside in _LOOSE and len(list(here)) < 2):
        if _imports(at):
            inside = Context.IMPORT
        elif _head(at, at.rules.signatures):
            inside = Context.SIGNATURE
        elif called:
            inside = Context.ARGUMENTS
    if inside is Context.ARGUMENTS and called is False:
        return Context.STATEMENT
    return Context.ARGUMENTS if inside is Context.SIGNATURE and called and _calls(at) else inside


def _in_call(at: Tip) -> bool | None:
    """Return whether the innermost bracket is a `(` after a word, or None if no bracket is open in the statement."""
    brackets = at.state.brackets
    if not brackets or brackets[-1][0].block:
        return None
    opener, pos = brackets[-1]
    before = at.text[: max(pos, 0)].removesuffix(b"!")  # Rust's macros
    return opener.open == b"(" and before != b"" and (is_word(before[-1]) or before.endswith((b")", b"]", b">")))


def _calls(at: Tip) -> bool:
    """Return whether the innermost bracket follows a name in an assigned or returned value and so belongs to a call."""
    opened = at.state.brackets[-1][1]
    before = at.text[statement_start(at.text, opened, at.state.brackets[:-1]) : opened]
    name = word_before(before).decode("utf-8", "replace")
    return bool(name) and name not in at.rules.data.signature_words and _VALUE.search(before) is not None


def _imports(at: Tip) -> bool:
    """Return whether the cursor is in an import statement, including inside its brackets, as in `import { a,`."""
    imports, brackets = at.rules.imports, at.state.brackets
    if imports is None or _head(at, imports):
        return imports is not None
    if not brackets or brackets[-1][1] < 0:
        return False
    return imports.match(at.text, statement_start(at.text, brackets[-1][1], brackets[:-1])) is not None


def _head(at: Tip, words: re.Pattern[bytes] | None) -> bool:
    """Return whether the statement at the cursor begins with a match of `words`."""
    if words is None:
        return False
    return words.match(at.text, statement_start(at.text, len(at.text), at.state.stack)) is not None


def indent_unit(data: Language, text: bytes) -> int:
    """Return the number of characters of one indent level in the last lines of a text, else the language's default."""
    indents = _INDENTED.findall(text, max(0, len(text) - LOOKED_AT))
    if data.indent == "0":
        return 0
    tabs = sum(white[:1] == b"\t" for white in indents)
    if tabs * 2 > len(indents) or (not indents and data.indent == "tab"):
        return 1
    widths = [0, *(len(white) for white in indents if white[:1] == b" ")]
    steps = [later - earlier for earlier, later in pairwise(widths) if 1 < later - earlier <= 8]
    if steps:
        return min(set(steps), key=lambda step: (-steps.count(step), step))
    return 4 if data.indent == "tab" else int(data.indent)


def expected_indent(rules: LexerRules, text: bytes, state: LexState, opens_block: bool) -> int:
    """Return the indent of the next statement, in characters.

    The indent is that of the last statement's first line, and one level more after a line that opens a block or
    bracket.
    """
    end = _last_code(rules.data, text)
    if end == 0:
        return 0
    start = text.rfind(b"\n", 0, end) + 1
    closed, opened = state.closed
    below = text.find(b"\n", start)
    first = start  # start of the line whose indent counts: that of the opening bracket, if the last line closes it
    if 0 <= opened < start <= closed and (below < 0 or closed < below):
        first = text.rfind(b"\n", 0, opened) + 1
    indent = indent_end(text, first) - first
    if rules.flat and rules.flat.match(text, start, end):
        return indent
    if opens_block or _opens(rules.data, text[start:end], state, start):
        return indent + indent_unit(rules.data, text)
    return indent


def max_body_indent(rules: LexerRules, before: bytes, text: bytes, state: LexState) -> int:
    """Return the maximum indent, in characters, of a block whose head is at the end of `text`, or -1 if unknown.

    The maximum is known if blocks are defined by indents alone and `before`, the text before the cursor, contains an
    indented line. In a file indented with spaces, up to three characters more than expected are allowed.
    """
    end = _last_code(rules.data, text)
    if rules.heads is None or state.stack or state.comment >= 0 or text[end - 1 : end] != b":":
        return -1
    if _INDENTED.search(before, max(0, len(before) - LOOKED_AT)) is None:
        return -1
    expected = expected_indent(rules, text, state, opens_block=False)
    return expected if indent_unit(rules.data, text) == 1 else expected + 3


def _last_code(data: Language, text: bytes) -> int:
    """Return the end of the last non-blank line, excluding a line comment at the end of that line."""
    end = len(text.rstrip())
    start = text.rfind(b"\n", 0, end) + 1
    for mark in data.line_comments:
        at = text.find(b" " + mark.encode(), start, end)
        if at >= 0 and text[start:at].strip():
            return start + len(text[start:at].rstrip())
    return end


def _opens(data: Language, line: bytes, state: LexState, start: int) -> bool:
    """Return whether a line opened a bracket or block that is still open; False inside a single-line string."""
    for opener, at in state.stack:
        if not opener.multiline:
            return False
        if at >= start and opener.sort == BRACKET:
            return True
    openers = tuple(mark.encode() for mark in data.block_openers if mark not in data.block_brackets)
    return bool(openers) and line.endswith(openers)
