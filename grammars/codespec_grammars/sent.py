"""What a sent cursor adds to what the window shows. Knows cursors and lexer entries; knows no text.

Where both agree nothing is added. Elsewhere the sent cursor wins: its context at the cursor itself, and what it says to
be open stays open until it is closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_grammars.contexts import TEXT_LIKE, Context
from codespec_grammars.cursor import Cursor
from codespec_grammars.lexer import Entry, LexState
from codespec_grammars.lexer_rules import COMMENT, STRING, LexerRules, Opener

_AROUND = frozenset({Context.ARGUMENTS, Context.IMPORT, Context.SIGNATURE})
_PLAIN = frozenset({Context.STATEMENT, Context.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Sent:
    """The sent cursor, and the entries that were opened before the window began."""

    cursor: Cursor
    open: tuple[Entry, ...]

    def correct(self, context: Context, state: LexState) -> Context:
        """The sent context for text and plain code directly inside what it said to be open."""
        if not self.open or state.stack != self.open:
            return context
        sent = self.cursor.context
        alike = (context in TEXT_LIKE and sent in TEXT_LIKE) or (context in _PLAIN and sent in _AROUND)
        return sent if alike else context


def reconcile(sent: Cursor, own: Cursor, rules: LexerRules) -> Sent | None:
    """None where the window shows all that was sent."""
    if (sent.context, sent.open_brackets) == (own.context, own.open_brackets):
        return None
    outer = sent.open_brackets.removesuffix(own.open_brackets) if own.open_brackets else sent.open_brackets
    entries = [(rules.openers[mark], -1) for mark in (char.encode() for char in outer) if mark in rules.openers]
    text = _text_opener(sent.context, rules) if sent.context != own.context else None
    if text:
        entries.append((text, -1))
    return Sent(sent, tuple(entries))


def _text_opener(context: Context, rules: LexerRules) -> Opener | None:
    """What must have begun before the window for the cursor to be in such a text: the first of its kind that spans
    lines."""
    openers = [opener for opener in rules.openers.values() if opener.multiline]
    if context is Context.COMMENT:
        return next((item for item in openers if item.sort == COMMENT and not item.documents), None)
    if context is Context.DOCSTRING:
        documents = [item for item in openers if item.documents]
        return next(iter(documents), None) or next((item for item in openers if item.sort == STRING), None)
    if context is Context.STRING:
        return next((item for item in openers if item.sort == STRING), None)
    return None
