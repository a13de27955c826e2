"""Track dismissed suggestions, and suppress automatic ones at a place after three dismissals in a row.

A suggestion is dismissed if the user types something else or another suggestion replaces it. A place is the text around
the cursor, so it doesn't change with edits to lines above. The data stays in memory and is dropped with its document.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from codespec_lsp.acceptance import Counters
from codespec_lsp.buffer import Edit
from codespec_lsp.prompt import TextAround

MOST_DISMISSED = 3  # in a row at one place
MOST_PLACES = 256
LINES, MOST_LINE = 2, 200  # lines up to the cursor that define a place; maximum characters before and after it

Place = tuple[str, str, str]


@dataclass(slots=True)
class _Open:
    """A shown suggestion that has been neither accepted nor dismissed."""

    place: Place
    text: str
    tip: int


class Dismissals:
    """The dismissals of one client."""

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
        return self._dismissed.get(place_of(prompt), 0) >= MOST_DISMISSED

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
        while len(self._dismissed) > MOST_PLACES:
            self._dismissed.popitem(last=False)


def place_of(prompt: TextAround) -> Place:
    """Return the place of a prompt: the document, the last lines up to the cursor and the rest of its line."""
    before = "\n".join(prompt.prefix[-MOST_LINE * LINES :].split("\n")[-LINES:])
    return prompt.uri, before[-MOST_LINE:], prompt.suffix[:MOST_LINE].partition("\n")[0]
