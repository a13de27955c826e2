"""The longest suffix of a text among many kept texts, in a bounded number of steps: a suffix array over the texts read
backwards (Manber and Myers 1993), sorted by their first bytes, and a short end of new texts that is searched through.

Knows bytes; does not know where they come from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SORTED = 16  # bytes before a place by which places are sorted
LOOKED_AT = 8  # places on either side of where a text would stand
MOST_NEW = 16 << 10  # bytes of new texts, before all is to be sorted again
MOST_AHEAD = 2048  # bytes of what followed
END = b"\0"  # between texts, which have none


class TextIndex:
    """Immutable but for what `add` puts behind it; `add` is called from one thread while others look up."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        joined = END + b"".join(text.replace(END, b" ") + END for text in texts)
        self._backwards = joined[::-1]
        self._order = _sorted_places(self._backwards)
        self._text = joined
        self._new = END

    def add(self, text: bytes) -> bool:
        """Takes a text more; False where it is time to sort all again."""
        if len(self._new) + len(text) > MOST_NEW:
            return False
        self._new = self._new + text.replace(END, b" ") + END  # one assignment: whoever looks up sees old or new
        return True

    def longest(self, own: bytes, beyond: int) -> tuple[int, bytes]:
        """How many bytes at the end of `own` occur, if more than `beyond`, and what followed their latest occurrence;
        (0, b"") if there are none. It looks no further back than `own` goes."""
        length, ahead = self._in_new(own, beyond)
        found, place = self._in_sorted(own[::-1], max(length, beyond))
        if found > max(length, beyond):
            return found, _ahead(self._text, place)
        return length, ahead

    def _in_new(self, own: bytes, beyond: int) -> tuple[int, bytes]:
        new, length, place = self._new, 0, -1
        low, high = beyond + 1, len(own)
        while low <= high:  # a suffix of an occurring suffix occurs too
            middle = low if place < 0 else (low + high + 1) // 2
            found = _last_with_more(new, own[len(own) - middle :])
            if found < 0:
                high = middle - 1
            else:
                length, place, low = middle, found + middle, middle + 1
        return (length, _ahead(new, place)) if length else (0, b"")

    def _in_sorted(self, backwards: bytes, beyond: int) -> tuple[int, int]:
        """The longest common beginning with a place near by in the order, and that place in the text."""
        text = self._backwards
        wanted = backwards[:SORTED]
        at = bisect_left(self._order, wanted, key=lambda place: text[place : int(place) + SORTED])
        best, best_at = 0, 0
        for place in self._order[max(0, at - LOOKED_AT) : at + LOOKED_AT].tolist():
            end = len(text) - place
            if self._text[end : end + 1] in (END, b""):
                continue  # nothing followed
            length = _common(backwards, text[place : place + len(backwards)])
            if length > best or (length == best and end > best_at):
                best, best_at = length, end
        return (best, best_at) if best > beyond else (0, 0)


def _last_with_more(text: bytes, wanted: bytes) -> int:
    """Where the last occurrence that something follows begins; -1 for none."""
    end = len(text)
    while (found := text.rfind(wanted, 0, end)) >= 0:
        if text[found + len(wanted) : found + len(wanted) + 1] not in (END, b""):
            return found
        end = found + len(wanted) - 1
    return -1


def _ahead(text: bytes, place: int) -> bytes:
    end = text.find(END, place)
    return text[place : min(end if end >= 0 else len(text), place + MOST_AHEAD)]


def _common(first: bytes, second: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _sorted_places(text: bytes) -> NDArray[np.uint32]:
    """All places of a text, sorted by the SORTED bytes behind each; among equal ones the first stays first."""
    bytes_ = np.frombuffer(text + bytes(SORTED), dtype=np.uint8)
    high, low = _words(bytes_, 0, len(text)), _words(bytes_, SORTED // 2, len(text))
    return np.lexsort((low, high)).astype(np.uint32)


def _words(bytes_: NDArray[np.uint8], start: int, count: int) -> NDArray[np.uint64]:
    """Eight bytes from each place as one number, which orders as the bytes do."""
    words = np.zeros(count, dtype=np.uint64)
    for step in range(8):
        words = (words << np.uint64(8)) | bytes_[start + step : start + step + count]
    return words
