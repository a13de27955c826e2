"""Convert suggestions to LSP completion items.

An item replaces the line up to the cursor (of a long line, its end) and repeats that text. So clients that keep an old
suggestion on screen while the user types can match the new one as its continuation. Text up to the last emoji of the
line is not replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lsprotocol import types

from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.completions import Suggestion

ACCEPT = "codespec.accept"
MOST_LABEL = 80
_TO_LAST_PAIR = re.compile("(?s:.*)[\U00010000-\U0010ffff]")
_WORD = re.compile(r"[\w$]*")
REPEATED = 512  # an item repeats one to two times as many characters of a long line, so that its start rarely moves
MOST_ANSWER, COPIES = 56 << 10, 3  # maximum bytes of the texts in an answer, and copies of each text in it


@dataclass(frozen=True, slots=True)
class EditRange:
    """The range that an item replaces, and its current text `typed`. `newline` is the client's line end."""

    range: types.Range
    typed: str
    newline: str


def fitting(suggestions: Sequence[Suggestion], edit: EditRange) -> list[Suggestion]:
    """Return the first suggestions, limited to MOST_ANSWER bytes, which every client can handle."""
    sizes = accumulate(COPIES * len(json.dumps(edit.typed + each.shown)) for each in suggestions)
    return [each for each, size in zip(suggestions, sizes, strict=True) if size <= MOST_ANSWER]


def inline_item(suggestion: Suggestion, edit: EditRange) -> types.InlineCompletionItem:
    """Return an item for textDocument/inlineCompletion."""
    text = edit.typed + with_newline(suggestion.shown, edit.newline)
    return types.InlineCompletionItem(
        insert_text=text,
        filter_text=text,
        range=edit.range,
        command=_command(suggestion, edit),
    )


def completion_list(suggestions: Sequence[Suggestion], edit: EditRange, word: str) -> types.CompletionList:
    """Return the list for textDocument/completion.

    `word` is the word up to the cursor, by which the client filters. The filter text continues after it, so an item
    stays in the list while the user types its text.
    """
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
    """Return the command that reports acceptance.

    Its arguments are the suggestion's name, the length of the repeated text, and the number of typed characters.
    """
    lead = len(with_newline(edit.typed, edit.newline))
    return types.Command(title="codespec", command=ACCEPT, arguments=[suggestion.name, lead, suggestion.typed])


def with_newline(text: str, newline: str) -> str:
    """Return the text with the client's line ends."""
    return text.replace("\r\n", "\n") if newline == "\n" else text


def one_line_label(typed: str, rest: str) -> str:
    """Return a one-line label: the typed text and the first non-blank line after it."""
    first, *lines = rest.splitlines() or [""]
    if first.strip():
        return typed + (first.rstrip() if typed else first.strip())
    shown = next((line.strip() for line in lines if line.strip()), "")
    return f"{typed} {shown}".strip()


def repeats_from(buffer: Buffer, here: TextPosition) -> int:
    """Return the start column of the repeated text: 0, or the end of the last character with two UTF-16 units.

    VS Code shows no suggestion whose replaced text contains such a character (seen in 1.100).
    """
    line = buffer.lines[here.row][: here.column]
    found = None if line.isascii() else _TO_LAST_PAIR.match(line)
    return found.end() if found else 0


def word_start(buffer: Buffer, here: TextPosition) -> int:
    """Return the start column of the word that ends at a position."""
    line = buffer.lines[here.row][: here.column]
    return len(line) - len(_WORD.match(line[::-1])[0])  # type: ignore[index]  # it matches any text
