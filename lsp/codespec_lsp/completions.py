"""Completions as texts at a place, finished or still growing, and the memory of them that makes typing along free.

Knows strings; knows no daemon and no editor.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Spot:
    """A cursor: the document, the text around it as far as it is sent, and how much of the document stands before
    `prefix`."""

    uri: str
    prefix: str
    suffix: str
    offset: int = 0

    def rest(self, other: Spot, text: str) -> str | None:
        """What of `text`, written at this spot, is still to come at the other; None where that is no place in it."""
        typed = len(other.prefix) - len(self.prefix)
        if typed < 0 or not text.startswith(other.prefix[len(self.prefix) :]):
            return None  # most are out here, before whole texts are compared
        if (self.uri, self.offset, self.suffix) != (other.uri, other.offset, other.suffix):
            return None
        return text[typed:] if other.prefix.startswith(self.prefix) else None


@dataclass(eq=False, slots=True)
class Text:
    """A completion. `done`: nothing more comes; `growing`: somebody is writing it. Listeners hear of changes."""

    spot: Spot
    text: str = ""
    done: bool = False
    growing: bool = False
    resumed: int = 0
    finish_reason: str = ""
    number: int = field(default_factory=lambda: next(_numbers))
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def grow(self, piece: str) -> None:
        """Appends a piece that will not be taken back."""
        self.text += piece
        self.tell()

    def end(self, finish_reason: str) -> None:
        """Nothing more comes."""
        self.done, self.growing, self.finish_reason = True, False, finish_reason
        self.tell()

    def stop(self) -> None:
        """Nobody writes it any more; there could be more."""
        self.growing = False
        self.tell()

    def tell(self) -> None:
        """Tells all who listen."""
        for listener in list(self.listeners):
            listener()


class TypedAlong:
    """The texts seen last; the one that was used longest ago goes first."""

    def __init__(self, most: int = 24) -> None:
        self._most = most
        self._texts: OrderedDict[int, Text] = OrderedDict()

    def keep(self, text: Text) -> None:
        """Remembers a text."""
        self._texts[text.number] = text
        self._texts.move_to_end(text.number)
        while len(self._texts) > self._most:
            self._texts.popitem(last=False)

    def find(self, spot: Spot) -> list[tuple[Text, str]]:
        """The texts that say something at a spot, and what: the latest first. One that was typed to its end says
        nothing, one that was empty from the start says that there is nothing."""
        found = []
        for text in reversed(self._texts.values()):
            rest = text.spot.rest(spot, text.text)
            if rest is None or (not rest and not self._says_nothing(text)):
                continue
            found.append((text, rest))
        for text, _ in reversed(found):
            self._texts.move_to_end(text.number)
        return found

    def forget(self, uri: str) -> None:
        """Drops what belongs to a document."""
        for number in [number for number, text in self._texts.items() if text.spot.uri == uri]:
            del self._texts[number]

    @staticmethod
    def _says_nothing(text: Text) -> bool:
        return text.growing or (text.done and not text.text)
