"""Compute the part of a growing text that may be shown: whole characters, without a possible start of a stop string.

Operates on bytes, independent of tokens and rounds.
"""

from __future__ import annotations

import codecs


class StopFinder:
    """Finder of stop strings in a growing text; the result does not depend on the chunk sizes."""

    def __init__(self, stops: tuple[bytes, ...] = ()) -> None:
        self.stops = stops
        self._longest = max(map(len, stops), default=0)

    def find(self, text: bytes | bytearray, start: int = 0) -> int | None:
        """Return the offset at which to cut the text, or None if the bytes from `start` on complete no stop string.

        If several match, the one completed first wins, then the longest, as if read byte by byte, so the cut does not
        depend on the number of bytes per round.
        """
        found: list[tuple[int, int]] = []
        for stop in self.stops:
            place = text.find(stop, max(0, start - len(stop) + 1))
            if place >= 0:
                found.append((place + len(stop), place))
        return min(found)[1] if found else None

    def held_back(self, text: bytes | bytearray) -> int:
        """Return how many trailing bytes may be the beginning of a stop string."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in lengths if self._may_begin(bytes(text[-size:]))), 0)

    def _may_begin(self, tail: bytes) -> bool:
        return any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.stops)


class Utf8Stream:
    """Decoder of committed bytes into text that can be shown at once."""

    def __init__(self, stops: StopFinder | None = None) -> None:
        self._stops = stops or StopFinder()
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """Return the text that is certain after these bytes; an incomplete character or stop string is held back."""
        data = self._held + data
        certain = len(data) - self._stops.held_back(data)
        self._held = data[certain:]
        return self._decoder.decode(data[:certain])

    def finish(self) -> str:
        """Return the held-back text at the end of the stream, without an incomplete last character."""
        text = self._decoder.decode(self._held)
        self._held = b""
        self._decoder.reset()
        return text
