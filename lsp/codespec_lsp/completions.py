"""Completions: cached and followed as text while the user types them, and shown as LSP items.

An item replaces the line up to the cursor (of a long line, its end) and repeats that text. So clients that keep an old
suggestion on screen while the user types can match the new one as its continuation. Text up to the last emoji of the
line is not replaced.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lsprotocol import types

from codespec_lsp.buffer import Buffer, Edit, TextPosition
from codespec_lsp.prompt import TextAround

# Pairs that an editor inserts when one character is typed.
PAIRS = ("()", "[]", "{}", '""', "''", "``", "<>")
# Inside a word, or after a joining character, more text would change the text already shown.
_UNSTABLE_END = re.compile(r"(?:[\w$\r]|\S?[\u200d\ufe0f])+\Z")
_numbers = itertools.count(1)
MAX_CACHED = 24
MAX_AHEAD = 3  # characters typed ahead of a growing text; of more, it is unlikely to get all right
ACCEPT = "codespec.accept"
MAX_LABEL = 80
_TO_LAST_SPECIAL = re.compile("(?s:.*)[\r\U00010000-\U0010ffff]")
_WORD = re.compile(r"[\w$]*")
REPEATED = 512  # an item repeats one to two times as many characters of a long line; its start rarely moves
MAX_ANSWER, COPIES = 56 << 10, 3  # maximum bytes of the texts in an answer, and copies of each text in it


@dataclass(eq=False, slots=True)
class CachedCompletion:
    """A completion of a prompt.

    `growing`: it is being streamed. `done`: it is complete. The listeners are called at each change.
    """

    prompt: TextAround
    text: str = ""
    done: bool = False
    growing: bool = False
    resumed: bool = False
    number: int = field(default_factory=lambda: next(_numbers))
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def fits(self, prompt: TextAround) -> bool:
        """Return whether the text continues a prompt, or may do so when it has grown past what the user typed."""
        if self.prompt.rest(prompt, self.text) is not None:
            return True
        return self.growing and self.prompt.is_behind(prompt, self.text, MAX_AHEAD)

    def grow(self, piece: str) -> None:
        """Append a final piece."""
        self.text += piece
        self._notify()

    def finish(self) -> None:
        """Mark the completion as complete."""
        self.done, self.growing = True, False
        self._notify()

    def stop(self) -> None:
        """Mark the stream as stopped before the completion is done."""
        self.growing = False
        self._notify()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


class CompletionCache:
    """An LRU cache of completions."""

    def __init__(self) -> None:
        self._completions: OrderedDict[int, CachedCompletion] = OrderedDict()

    def add(self, completions: Sequence[CachedCompletion]) -> None:
        """Add new completions."""
        self._completions |= {each.number: each for each in completions}
        while len(self._completions) > MAX_CACHED:
            self._completions.popitem(last=False)

    def find(self, prompt: TextAround) -> list[CachedCompletion]:
        """Return the completions that fit a prompt, the latest first.

        A completion that was typed to its end does not fit. One that finished empty does, and means that there is
        nothing to complete.
        """
        matches = []
        for completion in reversed(self._completions.values()):
            rest = completion.prompt.rest(prompt, completion.text)
            may_be_empty = completion.growing or (completion.done and not completion.text)
            if rest or (rest == "" and may_be_empty):
                matches.append(completion)
        for completion in reversed(matches):
            self._completions.move_to_end(completion.number)
        return matches

    def forget(self, uri: str) -> None:
        """Drop the completions of a document."""
        for number in [number for number, each in self._completions.items() if each.prompt.uri == uri]:
            del self._completions[number]


@dataclass(slots=True)
class TypedPrefix:
    """The part of a completion that the document already contains because the user typed it.

    `start` is the completion's offset in the document, in code points; `typed` is the number of its code points that
    are there, and `ahead` what was typed before the text has grown so far. `lost` is set once an edit has diverged.
    """

    start: int
    typed: int = 0
    ahead: str = ""
    lost: bool = False

    @property
    def tip(self) -> int:
        """The offset of the completion's remaining text."""
        return self.start + self.typed + len(self.ahead)

    def follow(self, edit: Edit, text: str, ahead: int = 0) -> str:
        """Apply an edit and return the piece that it inserted at the tip.

        It must be the next of `text`, or up to `ahead` characters more than there are. Deleting typed text returns ""
        without setting `lost`.
        """
        if self.lost:
            return ""
        edit = edit.least()
        if not edit.removed and not edit.text:
            return ""
        if edit.removed:
            self._take_back(edit)
            return ""
        piece = self.ahead + edit.text
        known = text[self.typed : self.typed + len(piece)]
        if edit.start != self.tip or not piece.startswith(known) or len(piece) - len(known) > ahead:
            self.lost = True
            return ""
        self.typed, self.ahead = self.typed + len(known), piece[len(known) :]
        return edit.text

    def _take_back(self, edit: Edit) -> None:
        """Follow a deletion that ends at the tip and lies within the typed part; any other sets `lost`."""
        end = edit.start + len(edit.removed)
        if edit.text or end != self.tip or edit.start < self.start:
            self.lost = True
        else:
            kept = self.typed + len(self.ahead) - len(edit.removed)
            self.typed, self.ahead = min(self.typed, kept), self.ahead[: max(0, kept - self.typed)]


def is_accepted(piece: str) -> bool:
    """Return whether a piece inserted by one edit was accepted rather than typed.

    It was if it is longer than a key press and not added by the editor (a closing bracket or quote, indentation).
    """
    return len(piece) > 1 and bool(piece.strip()) and piece not in PAIRS


def stable_prefix(text: str) -> str:
    """Return the part of a growing text that can be shown: up to the end of a word, without a last blank line."""
    shown = _UNSTABLE_END.sub("", text)
    if not shown.strip():
        return ""
    lines = shown.rstrip(" \t")
    return lines.rstrip() if lines.endswith("\n") else shown


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion as suggested at a prompt: `rest` is its remaining text, `shown` the part that can be shown now."""

    completion: CachedCompletion
    shown: str
    rest: str

    @classmethod
    def of(cls, completion: CachedCompletion, prompt: TextAround) -> Suggestion:
        """Return a completion's suggestion at a prompt, with empty texts if it does not fit."""
        rest = completion.prompt.rest(prompt, completion.text) or ""
        return cls(completion, rest if completion.done else stable_prefix(rest), rest)

    @property
    def name(self) -> str:
        """The completion's identifier between client and server."""
        return str(self.completion.number)

    @property
    def typed(self) -> int:
        """The number of the completion's characters that are already in the document."""
        return len(self.completion.text) - len(self.rest)

    @property
    def text(self) -> str:
        """The completion from its start to the end of the shown part."""
        return self.completion.text[: self.typed + len(self.shown)]


@dataclass(frozen=True, slots=True)
class EditRange:
    """The range that an item replaces, and its current text `typed`. `newline` is the client's line end."""

    range: types.Range
    typed: str
    newline: str


def fitting(suggestions: Sequence[Suggestion], edit: EditRange) -> list[Suggestion]:
    """Return the first suggestions, limited to MAX_ANSWER bytes, which every client can handle."""
    sizes = accumulate(COPIES * len(json.dumps(edit.typed + each.shown)) for each in suggestions)
    return [each for each, size in zip(suggestions, sizes, strict=True) if size <= MAX_ANSWER]


def inline_item(suggestion: Suggestion, edit: EditRange) -> types.InlineCompletionItem:
    """Return an item for textDocument/inlineCompletion."""
    text = edit.typed + with_newline(suggestion.shown, edit.newline)
    return types.InlineCompletionItem(
        insert_text=text,
        filter_text=text,
        range=edit.range,
        command=_command(suggestion, edit),
    )


def completion_list(suggestions: Sequence[Suggestion], word: EditRange) -> types.CompletionList:
    """Return the list for textDocument/completion.

    `word` is the word up to the cursor, by which the client filters. The filter text continues after it, so an item
    stays in the list while the user types its text.
    """
    items = [_completion_item(suggestion, word, index) for index, suggestion in enumerate(suggestions)]
    return types.CompletionList(is_incomplete=True, items=items)


def _completion_item(suggestion: Suggestion, edit: EditRange, index: int) -> types.CompletionItem:
    text = edit.typed + with_newline(suggestion.shown, edit.newline)
    shown = one_line_label(edit.typed, suggestion.shown)
    return types.CompletionItem(
        label=shown[:MAX_LABEL],
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
    return text.replace("\r\n", "\n").replace("\r", "\n") if newline == "\n" else text


def one_line_label(typed: str, rest: str) -> str:
    """Return a one-line label: the typed text and the first non-blank line after it."""
    first, *lines = rest.splitlines() or [""]
    if first.strip():
        return typed + (first.rstrip() if typed else first.strip())
    shown = next((line.strip() for line in lines if line.strip()), "")
    return f"{typed} {shown}".strip()


def repeats_from(buffer: Buffer, here: TextPosition) -> int:
    """Return the start column of the repeated text: 0, or the end of the last \\r or character with two UTF-16 units.

    VS Code shows no suggestion that replaces such a character (seen in 1.100). Neovim would make the \\r a line end.
    """
    line = buffer.lines[here.row][: here.column]
    match = None if line.isascii() and "\r" not in line else _TO_LAST_SPECIAL.match(line)
    return match.end() if match else 0


def word_start(buffer: Buffer, here: TextPosition) -> int:
    """Return the start column of the word that ends at a position."""
    line = buffer.lines[here.row][: here.column]
    return len(line) - len(_WORD.match(line[::-1])[0])  # type: ignore[index]  # it matches any text
