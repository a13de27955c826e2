"""Choose the context at a tip from the tree's captures and the lexer's state.

The tree decides if there is no error between the tip and the captured node. Otherwise the lexer does: it reads left to
right, so text after the tip can't mislead it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from codespec_grammars.contexts import TEXT_LIKE, Context
from codespec_grammars.language import Language
from codespec_grammars.lexer import COMMENT, LexerRules, LexState, in_text
from codespec_grammars.queries import Captures
from codespec_grammars.statement import begins_with, is_word, statement_start, word_before

_HEADS = (Context.IMPORT, Context.SIGNATURE)
_LOOSE = (Context.STATEMENT, Context.ARGUMENTS)
_VALUE = re.compile(rb"[^=!<>]=[^=>]|\breturn\b")  # parentheses after this belong to a call, not to a signature
_STRING_START = re.compile(rb"[ \t]*[A-Za-z]{0,3}$")


@dataclass(frozen=True, slots=True)
class Tip:
    """A text, the position of the tip in it, and the lexer state there."""

    data: Language
    rules: LexerRules
    text: bytes
    tip: int
    state: LexState


def decide(at: Tip, found: Captures) -> Context:
    """Return the context at the tip."""
    inside = found.inside if found.clean else None
    text = _text_by_lexer(at) if found.errors or inside is Context.STRING else None
    if inside is Context.STRING and text is Context.DOCSTRING:
        return text
    if inside in TEXT_LIKE and (text or not found.errors or inside is Context.FREE_TEXT):
        return inside
    if text:
        return Context.IMPORT if text is Context.STRING and _imports(at) else text
    inside = None if inside in TEXT_LIKE else inside
    line = at.text[at.text.rfind(b"\n", 0, at.tip) + 1 : at.tip]
    stripped = line.rstrip()
    token = _token(at, found, stripped) if stripped else None
    if token is Context.BLOCK_START:
        return token
    if found.errors:
        inside = _corrected(at, inside)
    if (
        stripped
        and not found.errors
        and len(stripped) == len(line)
        and found.ended in _HEADS
        and not stripped.endswith(b"}")
    ):
        inside = found.ended
    if inside in _HEADS:
        return inside
    if not stripped:
        return Context.INDENT
    if is_word(at.text[at.tip - 1]):
        return Context.IDENTIFIER
    return token or inside or Context(at.data.default)


def _token(at: Tip, found: Captures, stripped: bytes) -> Context | None:
    """Return the context given by the last token on the line, or by its bytes if the tree has errors."""
    if word_before(at.text, at.tip).decode("utf-8", "replace") in at.data.block_openers:
        return Context.BLOCK_START
    if found.token or not found.errors:
        return found.token
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
