"""Offers as the protocol's items. Knows lsprotocol and columns; decides nothing.

An item replaces the line up to the cursor and repeats what stands there: clients that keep an old suggestion on the
screen while the user types find the new one to be its continuation. What the line's emoji stand in is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsprotocol import types

from codespec_lsp.cut import one_line
from codespec_lsp.desk import Offer

ACCEPT = "codespec.accept"
MOST_LABEL = 80


@dataclass(frozen=True, slots=True)
class Target:
    """What an item replaces: `range`, in which `typed` stands already. `newline` is the one the client shows."""

    range: types.Range
    typed: str
    newline: str


def name_of(offer: Offer) -> str:
    """What a suggestion is called between client and server."""
    return str(offer.text.number)


def inline_item(offer: Offer, target: Target) -> types.InlineCompletionItem:
    """For textDocument/inlineCompletion."""
    text = target.typed + as_shown(offer.rest, target.newline)
    return types.InlineCompletionItem(
        insert_text=text,
        filter_text=text,
        range=target.range,
        command=_command(offer, target),
    )


def completion_list(offers: Sequence[Offer], target: Target, word: str) -> types.CompletionList:
    """For textDocument/completion; `word` is what the client filters by, the word up to the cursor. What it filters in
    goes on behind that, so that an item stays while the user types it along."""
    items = [_completion_item(offer, target, word, index) for index, offer in enumerate(offers)]
    return types.CompletionList(is_incomplete=True, items=items)


def _completion_item(offer: Offer, target: Target, word: str, index: int) -> types.CompletionItem:
    text = target.typed + as_shown(offer.rest, target.newline)
    shown = one_line(word, offer.rest)
    return types.CompletionItem(
        label=shown[:MOST_LABEL],
        kind=types.CompletionItemKind.Text,
        detail="codespec",
        documentation=text,
        filter_text=shown,
        sort_text=f"\x7f{index}",
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(range=target.range, new_text=text),
        command=_command(offer, target),
    )


def _command(offer: Offer, target: Target) -> types.Command:
    """Tells us that it was taken: which, how much of the item stood there, and how much of the text was typed along."""
    lead = len(as_shown(target.typed, target.newline))
    typed = len(offer.text.text) - len(offer.full)
    return types.Command(title="codespec", command=ACCEPT, arguments=[name_of(offer), lead, typed])


def as_shown(text: str, newline: str) -> str:
    """The text with the client's line ends."""
    return text.replace("\r\n", "\n") if newline == "\n" else text
