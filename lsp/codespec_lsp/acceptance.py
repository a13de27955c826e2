"""Count shown, accepted and dismissed suggestions, and suppress automatic ones where three were dismissed in a row.

Acceptance is detected from the item's command, from client reports and from edits, because editors differ.
All three may report the same piece, in any order, so only the furthest position of each suggestion counts. The counters
stay in this process and are never sent.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from codespec_lsp.buffer import Edit
from codespec_lsp.completions import Suggestion, TypedPrefix, is_accepted
from codespec_lsp.prompt import TextAround
from codespec_lsp.settings import camel

MAX = 256  # suggestions remembered


@dataclass(slots=True)
class Counters:
    """The counters of one client since it connected.

    `questions` counts requests, `shown` answered suggestions, `accepted` those accepted in full, `partly_accepted`
    those accepted only in part, `dismissed` those replaced by other text, and `kept_quiet` the requests suppressed
    because of that. Those of `edits` count next edits, accepted ones by hunk. `milliseconds` holds the answer times of
    the last requests.
    """

    questions: int = 0
    answered: int = 0
    superseded: int = 0
    cancelled: int = 0
    from_memory: int = 0
    from_daemon: int = 0
    cut_by_the_clock: int = 0
    more: int = 0
    shown: int = 0
    accepted: int = 0
    partly_accepted: int = 0
    accepted_characters: int = 0
    dismissed: int = 0
    kept_quiet: int = 0
    edits_shown: int = 0
    edits_accepted: int = 0
    edits_dismissed: int = 0
    milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    @property
    def acceptance(self) -> float:
        """The share of shown suggestions that were accepted in full or in part."""
        return (self.accepted + self.partly_accepted) / self.shown if self.shown else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values with camelCase names, as usual in editors."""
        times = sorted(self.milliseconds)
        counts = {camel(item.name): getattr(self, item.name) for item in fields(self) if item.name != "milliseconds"}
        return {
            **counts,
            "acceptance": round(self.acceptance, 4),
            "lastMs": round(self.milliseconds[-1], 1) if times else None,
            "medianMs": round(times[len(times) // 2], 1) if times else None,
        }


@dataclass(slots=True)
class _Counted:
    """One suggestion with the text shown so far. `taken` is the length of its accepted part.

    While it is shown in `document`, `typed_prefix` is the part that the user has typed there.
    """

    text: str
    document: str = ""
    typed_prefix: TypedPrefix | None = None
    taken: int = 0
    accepted: bool = False
    shown: bool = False


class Acceptance:
    """The acceptance tracking of one client. A text that grows under the same name is still one suggestion."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._all: OrderedDict[str, _Counted] = OrderedDict()

    def show(self, document: str, suggestions: Sequence[Suggestion], tip: int) -> None:
        """Record the suggestions answered at `tip`, an offset in the document."""
        self.close(document)
        for index, suggestion in enumerate(suggestions):
            name, text, typed = suggestion.name, suggestion.text, suggestion.typed
            counted = self._all.setdefault(name, _Counted(text))
            self._all.move_to_end(name)
            if index == 0 and not counted.shown:
                counted.shown = True
                self._counters.shown += 1
            counted.text = max(counted.text, text, key=len)
            counted.document, counted.typed_prefix = document, TypedPrefix(tip - typed, typed)
        while len(self._all) > MAX:
            self._all.popitem(last=False)

    def edited(self, document: str, edit: Edit) -> None:
        """Handle an edit. A piece of a suggestion that was inserted in one edit counts as accepted."""
        for counted in self._all.values():
            prefix = counted.typed_prefix
            if prefix is None or counted.document != document:
                continue
            before = prefix.typed
            if is_accepted(prefix.follow(edit, counted.text)):
                self._take(counted, before, prefix.typed)
            if prefix.lost:
                counted.typed_prefix = None

    def accept(self, name: str) -> None:
        """Handle a report that a suggestion was accepted in full."""
        self.accept_part(name, sys.maxsize)

    def accept_part(self, name: str, length: int) -> None:
        """Handle a report of the accepted length so far, in characters of the shown text."""
        counted = self._all.get(name)
        if counted is not None and length > 0:
            typed = counted.typed_prefix.typed if counted.typed_prefix is not None else 0
            self._take(counted, typed, min(length, len(counted.text)))

    def close(self, document: str) -> None:
        """Drop the suggestions of a closed document."""
        for counted in self._all.values():
            if counted.document == document:
                counted.typed_prefix = None

    def _take(self, counted: _Counted, start: int, end: int) -> None:
        """Count the part between two offsets of the text that was not counted before."""
        new = end - max(start, counted.taken)
        if new <= 0 and counted.accepted:
            return
        counters = self._counters
        first = counted.taken == 0 and not counted.accepted
        counters.accepted_characters += max(0, new)
        counted.taken = max(counted.taken, end)
        if counted.taken >= len(counted.text) and not counted.accepted:
            counted.accepted = True
            counters.accepted += 1
            counters.partly_accepted -= not first
        elif first:
            counters.partly_accepted += 1


MAX_DISMISSED = 3  # in a row at one place
MAX_PLACES = 256
LINES, MAX_LINE = 2, 200  # lines up to the cursor that define a place; maximum characters before and after it

Place = tuple[str, str, str]


@dataclass(slots=True)
class _Open:
    """A shown suggestion that has been neither accepted nor dismissed."""

    place: Place
    text: str
    tip: int


class Dismissals:
    """The dismissals of one client.

    A suggestion is dismissed if the user types something else or another suggestion replaces it. A place is the text
    around the cursor, so it doesn't change with edits to lines above. The data is dropped with its document.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[str, _Open] = {}
        self._dismissed: OrderedDict[Place, int] = OrderedDict()

    def show(self, prompt: TextAround, text: str, tip: int) -> None:
        """Record the first suggestion shown at `tip`, an offset in the document."""
        place = place_of(prompt)
        known = self._open.get(prompt.uri)
        if known is not None and known.place == place and not (text.startswith(known.text) or known.text == text):
            self._dismiss(place)  # another suggestion has replaced it
        self._open[prompt.uri] = _Open(place, text, tip)

    def edited(self, uri: str, edit: Edit) -> None:
        """Handle an edit. Typing the suggested text resets its place's count; other text at the tip dismisses it."""
        shown = self._open.get(uri)
        if shown is None:
            return
        edit = edit.least()
        if edit.text and not edit.removed and edit.start == shown.tip:
            # Only the first character counts, because an editor may add a closing bracket to it.
            if shown.text.startswith(edit.text[0]):
                self._dismissed.pop(shown.place, None)
            else:
                self._dismiss(shown.place)
        if edit.text or edit.removed:
            del self._open[uri]

    def is_quiet(self, prompt: TextAround) -> bool:
        """Return whether automatic suggestions at the prompt's place are suppressed."""
        return self._dismissed.get(place_of(prompt), 0) >= MAX_DISMISSED

    def forgive(self, prompt: TextAround) -> None:
        """Reset the count of the prompt's place, after the user invoked completion there."""
        self._dismissed.pop(place_of(prompt), None)

    def close(self, uri: str) -> None:
        """Drop the data of a closed document."""
        self._open.pop(uri, None)
        for place in [place for place in self._dismissed if place[0] == uri]:
            del self._dismissed[place]

    def _dismiss(self, place: Place) -> None:
        self._counters.dismissed += 1
        self._dismissed[place] = self._dismissed.get(place, 0) + 1
        self._dismissed.move_to_end(place)
        while len(self._dismissed) > MAX_PLACES:
            self._dismissed.popitem(last=False)


def place_of(prompt: TextAround) -> Place:
    """Return the place of a prompt: the document, the last lines up to the cursor and the rest of its line."""
    before = "\n".join(prompt.prefix[-MAX_LINE * LINES :].split("\n")[-LINES:])
    return prompt.uri, before[-MAX_LINE:], prompt.suffix[:MAX_LINE].partition("\n")[0]
