"""Where suggestions were dismissed: what was typed instead of one, or what replaced it. Nothing is suggested unasked at
a place where the last three were.

A place is the text around the cursor, so that it stays the same when lines above come and go. Kept in memory for each
document and gone with it; knows edits and prompts, and tells nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from codespec_lsp.acceptance import Counters
from codespec_lsp.buffer import Edit
from codespec_lsp.prompt import Prompt

MOST_DISMISSED = 3  # in a row at one place
MOST_PLACES = 256
LINES, MOST_LINE = 2, 200  # lines up to the cursor that make a place, and characters of them and of what follows

Place = tuple[str, str, str]


@dataclass(slots=True)
class _Open:
    """A suggestion that is shown and neither taken nor dismissed yet."""

    place: Place
    text: str
    tip: int


class Dismissals:
    """Of one client."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[str, _Open] = {}
        self._dismissed: OrderedDict[Place, int] = OrderedDict()

    def show(self, prompt: Prompt, text: str, tip: int) -> None:
        """Takes what is shown first at `tip`, an offset in the document."""
        place = place_of(prompt)
        known = self._open.get(prompt.uri)
        if known is not None and known.place == place and not (text.startswith(known.text) or known.text == text):
            self._dismiss(place)  # it was shown, and another one stands there now
        self._open[prompt.uri] = _Open(place, text, tip)

    def edited(self, uri: str, edit: Edit) -> None:
        """Takes an edit: what goes along the suggestion agrees with it, other text at its place dismisses it."""
        shown = self._open.get(uri)
        if shown is None:
            return
        edit = edit.least()
        if edit.text and not edit.removed and edit.start == shown.tip:
            # Only the first character tells: an editor may add a closing bracket to it.
            if shown.text.startswith(edit.text[0]):
                self._dismissed.pop(shown.place, None)
            else:
                self._dismiss(shown.place)
        if edit.text or edit.removed:
            del self._open[uri]

    def is_quiet(self, prompt: Prompt) -> bool:
        """Whether nothing is to be suggested there unasked."""
        return self._dismissed.get(place_of(prompt), 0) >= MOST_DISMISSED

    def forgive(self, prompt: Prompt) -> None:
        """The user asked for a suggestion there."""
        self._dismissed.pop(place_of(prompt), None)

    def close(self, uri: str) -> None:
        """The document is gone."""
        self._open.pop(uri, None)
        for place in [place for place in self._dismissed if place[0] == uri]:
            del self._dismissed[place]

    def _dismiss(self, place: Place) -> None:
        self._counters.dismissed += 1
        self._dismissed[place] = self._dismissed.get(place, 0) + 1
        self._dismissed.move_to_end(place)
        while len(self._dismissed) > MOST_PLACES:
            self._dismissed.popitem(last=False)


def place_of(prompt: Prompt) -> Place:
    """The document, the last lines up to the cursor and the rest of its line."""
    before = "\n".join(prompt.prefix[-MOST_LINE * LINES :].split("\n")[-LINES:])
    return prompt.uri, before[-MOST_LINE:], prompt.suffix[:MOST_LINE].partition("\n")[0]
