"""Suggestions as the protocol's items.

An item replaces the line up to the cursor, of a long one its end, and repeats what stands there: clients that keep an
old suggestion on the screen while the user types find the new one to be its continuation. The line's emoji stay as they
are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lsprotocol import types

from codespec_lsp.buffer import Buffer, Position
from codespec_lsp.completions import Suggestion

ACCEPT = "codespec.accept"
MOST_LABEL = 80
_TO_LAST_PAIR = re.compile("(?s:.*)[\U00010000-\U0010ffff]")
_WORD = re.compile(r"[\w$]*")
REPEATED = 512  # characters of a long line, one to two times as many of which an item repeats: the start stays in place
MOST_ANSWER, COPIES = 56 << 10, 3  # bytes of the texts in an answer, and how often it holds each


@dataclass(frozen=True, slots=True)
class EditRange:
    """What an item replaces: `range`, in which `typed` stands already. `newline` is the one that the client shows."""

    range: types.Range
    typed: str
    newline: str


def fitting(suggestions: Sequence[Suggestion], edit: EditRange) -> list[Suggestion]:
    """The first suggestions, as many as make an answer that no client chokes on."""
    sizes = accumulate(COPIES * len(json.dumps(edit.typed + each.shown)) for each in suggestions)
    return [each for each, size in zip(suggestions, sizes, strict=True) if size <= MOST_ANSWER]


def inline_item(suggestion: Suggestion, edit: EditRange) -> types.InlineCompletionItem:
    """For textDocument/inlineCompletion."""
    text = edit.typed + with_newline(suggestion.shown, edit.newline)
    return types.InlineCompletionItem(
        insert_text=text,
        filter_text=text,
        range=edit.range,
        command=_command(suggestion, edit),
    )


def completion_list(suggestions: Sequence[Suggestion], edit: EditRange, word: str) -> types.CompletionList:
    """For textDocument/completion; `word` is what the client filters by, the word up to the cursor. What it filters in
    goes on behind that, so that an item stays while the user types it along."""
    items = [_completion_item(suggestion, edit, word, index) for index, suggestion in enumerate(suggestions)]
    return types.CompletionList(is_incomplete=True, items=items)


def _completion_item(suggestion: Suggestion, edit: EditRange, word: str, index: int) -> types.CompletionItem:
    text = edit.typed + with_newline(suggestion.shown, edit.newline)
    shown = one_line_label(word, suggestion.shown)
    return types.CompletionItem(
        label=shown[:MOST_LABEL],
        kind=types.CompletionItemKind.Text,
        detail="codespec",
        documentation=text,
        filter_text=shown,
        sort_text=f"\x7f{index}",
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(range=edit.range, new_text=text),
        command=_command(suggestion, edit),
    )


def _command(suggestion: Suggestion, edit: EditRange) -> types.Command:
    """Tells us that it was taken: which, how much of the item stood there, and how much of the text was typed along."""
    lead = len(with_newline(edit.typed, edit.newline))
    return types.Command(title="codespec", command=ACCEPT, arguments=[suggestion.name, lead, suggestion.typed])


def with_newline(text: str, newline: str) -> str:
    """The text with the client's line ends."""
    return text.replace("\r\n", "\n") if newline == "\n" else text


def one_line_label(typed: str, rest: str) -> str:
    """What is typed and the first line behind it that shows anything, for a list of one-line labels."""
    first, *lines = rest.splitlines() or [""]
    if first.strip():
        return typed + (first.rstrip() if typed else first.strip())
    shown = next((line.strip() for line in lines if line.strip()), "")
    return f"{typed} {shown}".strip()


def repeats_from(buffer: Buffer, here: Position) -> int:
    """Where what an item repeats begins: with the line, or behind its last character of two UTF-16 units. VS Code shows
    no suggestion whose replaced text has one (seen in 1.100)."""
    line = buffer.lines[here.row][: here.column]
    found = None if line.isascii() else _TO_LAST_PAIR.match(line)
    return found.end() if found else 0


def word_start(buffer: Buffer, here: Position) -> int:
    """The column where the word up to a position begins."""
    line = buffer.lines[here.row][: here.column]
    return len(line) - len(_WORD.match(line[::-1])[0])  # type: ignore[index]  # it matches any text
