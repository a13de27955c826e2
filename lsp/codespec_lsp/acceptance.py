"""How much of each suggestion was taken: by the command that an item carries, by what a client reports, and by edits
alone, so that it counts in every editor. Knows suggestions by name; knows no protocol.

The three may all tell of the same piece, in any order: for each suggestion only the furthest counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from codespec_lsp.buffer import Edit
from codespec_lsp.counters import Counters
from codespec_lsp.following import Following, is_accepted

MOST = 256  # suggestions remembered


@dataclass(slots=True)
class Suggestion:
    """One text as far as it was shown; `taken` is how far it was accepted."""

    name: str
    text: str
    taken: int = 0
    accepted: bool = False
    counted: bool = False

    @property
    def whole(self) -> bool:
        """Whether all that was shown was taken."""
        return self.taken >= len(self.text)


@dataclass(slots=True)
class _Shown:
    suggestion: Suggestion
    following: Following


class Acceptance:
    """Of one client. Texts grow: showing the longer one under the same name is still one suggestion."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._all: OrderedDict[str, Suggestion] = OrderedDict()
        self._shown: dict[str, list[_Shown]] = {}

    def show(self, document: str, offers: Sequence[tuple[str, str, int]], tip: int) -> None:
        """What was answered at `tip`, an offset in the document: for each a name, the text from where it began, and
        how much of that stands before the tip."""
        self._shown[document] = []
        for index, (name, text, typed) in enumerate(offers):
            suggestion = self._all.setdefault(name, Suggestion(name, text))
            self._all.move_to_end(name)
            if index == 0 and not suggestion.counted:
                suggestion.counted = True
                self._counters.shown += 1
            if len(text) > len(suggestion.text):
                suggestion.text = text
            self._shown[document].append(_Shown(suggestion, Following(tip - typed, typed)))
        while len(self._all) > MOST:
            self._all.popitem(last=False)

    def edited(self, document: str, edit: Edit) -> None:
        """Takes an edit: a piece that was put in at once and goes on from the suggestion was taken from it."""
        for shown in self._shown.get(document, []):
            before = shown.following.typed
            piece = shown.following.follow(edit, shown.suggestion.text)
            if is_accepted(piece):
                self._take(shown.suggestion, before, shown.following.typed)
        self._shown[document] = [shown for shown in self._shown.get(document, []) if not shown.following.lost]

    def accept(self, name: str) -> None:
        """The client says that it was taken whole."""
        suggestion = self._all.get(name)
        if suggestion is not None:
            self._take(suggestion, self._typed(suggestion), len(suggestion.text))

    def accept_part(self, name: str, length: int) -> None:
        """The client says how much was taken so far, in characters of what was shown."""
        suggestion = self._all.get(name)
        if suggestion is not None and length > 0:
            self._take(suggestion, self._typed(suggestion), min(length, len(suggestion.text)))

    def close(self, document: str) -> None:
        """The document is gone."""
        self._shown.pop(document, None)

    def _typed(self, suggestion: Suggestion) -> int:
        """How much of it stands in a document already."""
        shown = [shown for each in self._shown.values() for shown in each if shown.suggestion is suggestion]
        return shown[0].following.typed if shown else 0

    def _take(self, suggestion: Suggestion, start: int, end: int) -> None:
        """Counts what is new between two places of the text."""
        new = end - max(start, suggestion.taken)
        if new <= 0 and suggestion.accepted:
            return
        counters = self._counters
        first = suggestion.taken == 0 and not suggestion.accepted
        counters.accepted_characters += max(0, new)
        suggestion.taken = max(suggestion.taken, end)
        if suggestion.whole and not suggestion.accepted:
            suggestion.accepted = True
            counters.accepted += 1
            counters.partly_accepted -= not first
        elif first:
            counters.partly_accepted += 1
