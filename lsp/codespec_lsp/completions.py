"""Cache completions, track how far the user types them, count acceptances and dismissals, and build LSP items.

An item replaces the line's text before the cursor, or only the end of a long text, and begins with the replaced text.
Clients that leave an old suggestion on screen while the user types can then recognize its continuation.

Editors report an acceptance by an item's command, by a notification, or only by the edit itself. The same acceptance
may be reported several times and in any order, so only the furthest accepted position in each suggestion counts.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lsprotocol import types

from codespec_lsp.buffer import Buffer, Edit, TextPosition
from codespec_lsp.prompt import TextAround
from codespec_lsp.status import Counters

# Pairs that an editor inserts when one character is typed.
PAIRS = ("()", "[]", "{}", '""', "''", "``", "<>")
# Inside a word, or after a joining character, more text would change the text already shown.
_UNSTABLE_END = re.compile(r"(?:[\w$\r]|\S?[\u200d\ufe0f])+\Z")
_numbers = itertools.count(1)
MAX_CACHED = 24
MAX_AHEAD = 3  # characters that may be typed ahead of a growing text: longer ones are rarely predicted right
ACCEPT = "codespec.accept"
MAX_LABEL = 80
_TO_LAST_SPECIAL = re.compile("(?s:.*)[\r\U00010000-\U0010ffff]")
REPEATED = 512  # an item repeats one to two times as many characters of a long line; its start rarely moves
MAX_ANSWER, COPIES = 56 << 10, 3  # maximum bytes of the texts in an answer, and copies of each text in it
MAX_TRACKED = 256  # suggestions whose acceptance can still be reported
MAX_DISMISSED = 3  # dismissals in a row at one place, after which automatic suggestions stop there
MAX_PLACES = 256
LINES, MAX_LINE = 2, 200  # lines up to the cursor that define a place; maximum characters before and after it


@dataclass(eq=False, slots=True)
class CachedCompletion:
    """A prompt's completion, `growing` while streamed and `done` once complete. Each change calls the `listeners`."""

    prompt: TextAround
    text: str = ""
    done: bool = False
    growing: bool = False
    resumed: bool = False
    number: int = field(default_factory=lambda: next(_numbers))
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def fits(self, prompt: TextAround) -> bool:
        """Return whether this completion fits a prompt now, or may fit the prompt once more text has arrived."""
        may_fit = self.growing and self.prompt.is_behind(prompt, self.text, MAX_AHEAD)
        return may_fit or self.prompt.rest(prompt, self.text) is not None

    def grow(self, piece: str) -> None:
        self.text += piece
        for listener in list(self.listeners):
            listener()

    def end(self, *, done: bool) -> None:
        """Mark the stream as ended. The completion is incomplete unless `done` is set."""
        self.done, self.growing = done, False
        self.grow("")


class CompletionCache:
    """An LRU cache of completions."""

    def __init__(self) -> None:
        self._completions: OrderedDict[int, CachedCompletion] = OrderedDict()

    def add(self, completions: Sequence[CachedCompletion]) -> None:
        self._completions |= {each.number: each for each in completions}
        while len(self._completions) > MAX_CACHED:
            self._completions.popitem(last=False)

    def find(self, prompt: TextAround) -> list[CachedCompletion]:
        """Return the completions that fit a prompt, except fully typed ones, starting with the most recently used."""
        matches = []
        for completion in reversed(self._completions.values()):
            rest = completion.prompt.rest(prompt, completion.text)
            # A finished completion without text fits, because it shows that there is nothing to complete.
            may_be_empty = completion.growing or (completion.done and not completion.text)
            if rest or (rest == "" and may_be_empty):
                matches.append(completion)
        for completion in reversed(matches):
            self._completions.move_to_end(completion.number)
        return matches

    def forget(self, uri: str) -> None:
        for number in [number for number, each in self._completions.items() if each.prompt.uri == uri]:
            del self._completions[number]


@dataclass(slots=True)
class TypedPrefix:
    """The part of a completion that the user has typed.

    `start` is the completion's offset in the document, and `typed` the length of the typed part, both in code points.
    `ahead` is text typed beyond the completion's current end. `lost` is set once an edit contradicts the completion.
    """

    start: int
    typed: int = 0
    ahead: str = ""
    lost: bool = False

    @property
    def tip(self) -> int:
        """The offset at which the completion's remaining text would be inserted."""
        return self.start + self.typed + len(self.ahead)

    def follow(self, edit: Edit, text: str, ahead: int = 0) -> str:
        """Apply an edit and return the part of `text` that the edit appended to the typed part, or "" if none.

        The edit may insert up to `ahead` characters beyond the end of `text`, and may delete only typed text.
        """
        edit = edit.least()
        if self.lost or not (edit.removed or edit.text):
            return ""
        if edit.removed:
            kept = self.typed + len(self.ahead) - len(edit.removed)
            is_typed = self.start <= edit.start and edit.start + len(edit.removed) == self.tip
            self.lost = bool(edit.text) or not is_typed
            if not self.lost:
                self.typed, self.ahead = min(self.typed, kept), self.ahead[: max(0, kept - self.typed)]
            return ""
        piece = self.ahead + edit.text
        known = text[self.typed : self.typed + len(piece)]
        if edit.start != self.tip or not piece.startswith(known) or len(piece) - len(known) > ahead:
            self.lost = True
            return ""
        self.typed, self.ahead = self.typed + len(known), piece[len(known) :]
        return edit.text


def is_accepted(piece: str) -> bool:
    """Return whether the text inserted by one edit is an accepted suggestion, not a typed key or an automatic pair."""
    return len(piece) > 1 and bool(piece.strip()) and piece not in PAIRS


def stable_prefix(text: str) -> str:
    """Return the part of an unfinished text that can be shown: only whole words, and no trailing blank line."""
    shown = _UNSTABLE_END.sub("", text)
    if not shown.strip():
        return ""
    lines = shown.rstrip(" \t")
    return lines.rstrip() if lines.endswith("\n") else shown


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion at a prompt: `rest` is not typed yet, and `shown` is the part of `rest` that can be shown now."""

    completion: CachedCompletion
    shown: str
    rest: str

    @classmethod
    def of(cls, completion: CachedCompletion, prompt: TextAround) -> Suggestion:
        """Return the suggestion of a completion at a prompt, with empty texts if the completion does not fit."""
        rest = completion.prompt.rest(prompt, completion.text) or ""
        return cls(completion, rest if completion.done else stable_prefix(rest), rest)

    @property
    def typed(self) -> int:
        """The number of the completion's characters that are already in the document."""
        return len(self.completion.text) - len(self.rest)


@dataclass(slots=True)
class _Tracked:
    """A sent suggestion: its longest text, the accepted length `taken`, and its `typed_prefix` while it is shown."""

    text: str
    document: str = ""
    typed_prefix: TypedPrefix | None = None
    taken: int = 0
    accepted: bool = False
    shown: bool = False


class Acceptance:
    """Counts the shown and accepted suggestions of one client."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._all: OrderedDict[str, _Tracked] = OrderedDict()

    def show(self, document: str, suggestions: Sequence[Suggestion], tip: int) -> None:
        """Record the suggestions that were sent to the client for the document offset `tip`."""
        self.close(document)
        for index, suggestion in enumerate(suggestions):
            name, typed = str(suggestion.completion.number), suggestion.typed
            text = suggestion.completion.text[: typed + len(suggestion.shown)]
            tracked = self._all.setdefault(name, _Tracked(text))
            self._all.move_to_end(name)
            if index == 0 and not tracked.shown:
                tracked.shown = True
                self._counters.shown += 1
            tracked.text = max(tracked.text, text, key=len)
            tracked.document, tracked.typed_prefix = document, TypedPrefix(tip - typed, typed)
        while len(self._all) > MAX_TRACKED:
            self._all.popitem(last=False)

    def edited(self, document: str, edit: Edit) -> None:
        """If an edit inserted a part of a suggestion at once, count that part as accepted."""
        for tracked in self._all.values():
            prefix = tracked.typed_prefix
            if prefix is None or tracked.document != document:
                continue
            before = prefix.typed
            if is_accepted(prefix.follow(edit, tracked.text)):
                self._take(tracked, before, prefix.typed)
            if prefix.lost:
                tracked.typed_prefix = None

    def accept(self, name: str, length: int = sys.maxsize) -> None:
        """Count the first `length` characters of a suggestion, by default all of it, as accepted."""
        tracked = self._all.get(name)
        if tracked is not None and length > 0:
            typed = tracked.typed_prefix.typed if tracked.typed_prefix is not None else 0
            self._take(tracked, typed, min(length, len(tracked.text)))

    def close(self, document: str) -> None:
        """Stop tracking the suggestions in a document."""
        for tracked in self._all.values():
            if tracked.document == document:
                tracked.typed_prefix = None

    def _take(self, tracked: _Tracked, start: int, end: int) -> None:
        """Count the characters between two offsets of a suggestion as accepted, except those counted before."""
        new = end - max(start, tracked.taken)
        if new <= 0 and tracked.accepted:
            return
        counters = self._counters
        first = tracked.taken == 0 and not tracked.accepted
        counters.accepted_characters += max(0, new)
        tracked.taken = max(tracked.taken, end)
        if tracked.taken >= len(tracked.text) and not tracked.accepted:
            tracked.accepted = True
            counters.accepted += 1
            counters.partly_accepted -= not first
        elif first:
            counters.partly_accepted += 1


Place = tuple[str, str, str]


def _place_of(prompt: TextAround) -> Place:
    """Return a key for the cursor's place, unchanged by edits elsewhere: the URI and the text around the cursor."""
    before = "\n".join(prompt.prefix[-MAX_LINE * LINES :].split("\n")[-LINES:])
    return prompt.uri, before[-MAX_LINE:], prompt.suffix[:MAX_LINE].partition("\n")[0]


class Dismissals:
    """Counts a client's dismissals: suggestions after which the user typed other text or got another suggestion."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._shown: dict[str, tuple[Place, str, int]] = {}  # by URI: place, text and offset, until the next edit
        self._dismissed: OrderedDict[Place, int] = OrderedDict()

    def show(self, prompt: TextAround, text: str, tip: int) -> None:
        """Record the first suggestion shown at the document offset `tip`."""
        place = _place_of(prompt)
        known, before, _ = self._shown.get(prompt.uri, (None, "", 0))
        if known == place and not text.startswith(before):
            self._dismiss(place)
        self._shown[prompt.uri] = place, text, tip

    def edited(self, uri: str, edit: Edit) -> None:
        """Reset the count of dismissals if the suggested text is typed; count a dismissal if other text is typed."""
        edit = edit.least()
        if uri not in self._shown or not (edit.text or edit.removed):
            return
        place, text, tip = self._shown.pop(uri)
        if edit.text and not edit.removed and edit.start == tip:
            # Only the first character counts, because an editor may add a closing bracket to it.
            if text.startswith(edit.text[0]):
                self._dismissed.pop(place, None)
            else:
                self._dismiss(place)

    def is_quiet(self, prompt: TextAround) -> bool:
        """Return whether automatic suggestions at the prompt's place are suppressed."""
        return self._dismissed.get(_place_of(prompt), 0) >= MAX_DISMISSED

    def forgive(self, prompt: TextAround) -> None:
        """Reset the count of dismissals at the prompt's place."""
        self._dismissed.pop(_place_of(prompt), None)

    def close(self, uri: str) -> None:
        self._shown.pop(uri, None)
        for place in [place for place in self._dismissed if place[0] == uri]:
            del self._dismissed[place]

    def _dismiss(self, place: Place) -> None:
        self._counters.dismissed += 1
        self._dismissed[place] = self._dismissed.get(place, 0) + 1
        self._dismissed.move_to_end(place)
        while len(self._dismissed) > MAX_PLACES:
            self._dismissed.popitem(last=False)


@dataclass(frozen=True, slots=True)
class EditRange:
    """The range that an item replaces. `typed` is the range's current text, and `newline` the client's line ending."""

    range: types.Range
    typed: str
    newline: str


def fitting(suggestions: Sequence[Suggestion], edit: EditRange) -> list[Suggestion]:
    """Return the first suggestions that fit into MAX_ANSWER bytes, a size that every client can handle."""
    sizes = accumulate(COPIES * len(json.dumps(edit.typed + each.shown)) for each in suggestions)
    return [each for each, size in zip(suggestions, sizes, strict=True) if size <= MAX_ANSWER]


def inline_item(suggestion: Suggestion, edit: EditRange) -> types.InlineCompletionItem:
    text = edit.typed + _with_newline(suggestion.shown, edit.newline)
    return types.InlineCompletionItem(text, text, edit.range, _command(suggestion, edit))


def completion_list(suggestions: Sequence[Suggestion], word: EditRange) -> types.CompletionList:
    """Return a list of items whose filter texts begin with `word`, so that clients keep them while the user types."""
    items = []
    for index, suggestion in enumerate(suggestions):
        text = word.typed + _with_newline(suggestion.shown, word.newline)
        label = one_line_label(word.typed, suggestion.shown)
        items.append(
            types.CompletionItem(
                label=label[:MAX_LABEL],
                kind=types.CompletionItemKind.Text,
                detail="codespec",
                documentation=text,
                filter_text=label,
                sort_text=f"\x7f{index}",
                insert_text_format=types.InsertTextFormat.PlainText,
                insert_text_mode=types.InsertTextMode.AsIs,
                text_edit=types.TextEdit(word.range, text),
                command=_command(suggestion, word),
            )
        )
    return types.CompletionList(is_incomplete=True, items=items)


def _command(suggestion: Suggestion, edit: EditRange) -> types.Command:
    """Return the command that reports an acceptance: the suggestion's name and its repeated and typed lengths."""
    lead = len(_with_newline(edit.typed, edit.newline))
    return types.Command("codespec", ACCEPT, arguments=[str(suggestion.completion.number), lead, suggestion.typed])


def _with_newline(text: str, newline: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if newline == "\n" else text


def one_line_label(typed: str, rest: str) -> str:
    """Return the typed text and the first non-blank line of `rest` as one line."""
    first, *lines = rest.splitlines() or [""]
    if first.strip():
        return typed + (first.rstrip() if typed else first.strip())
    shown = next((line.strip() for line in lines if line.strip()), "")
    return f"{typed} {shown}".strip()


def repeats_from(buffer: Buffer, here: TextPosition) -> int:
    """Return the column from which an item repeats the line: after the last \\r or two-unit UTF-16 character, else 0.

    VS Code 1.100 shows no item that replaces a two-unit character. Neovim would turn a repeated \\r into a line ending.
    """
    line = buffer.lines[here.row][: here.column]
    match = None if line.isascii() and "\r" not in line else _TO_LAST_SPECIAL.match(line)
    return match.end() if match else 0
