"""What may be shown of a growing text: whole characters, and nothing that a stop string may still take back.

Knows bytes and stop strings; knows no tokens and no rounds.
"""

from __future__ import annotations

import codecs


class StopFinder:
    """Finds stop strings in a growing text, the same whatever pieces it grows by."""

    def __init__(self, stops: tuple[bytes, ...] = ()) -> None:
        self.stops = stops
        self._longest = max(map(len, stops), default=0)

    def find(self, text: bytes | bytearray, start: int = 0) -> int | None:
        """Where the text is to be cut, if what was added from byte `start` on completes a stop string.

        Of several, the one completed first counts, and of those the longest, as if read byte by byte; so
        the cut cannot depend on how much a round brought.
        """
        found: list[tuple[int, int]] = []
        for stop in self.stops:
            place = text.find(stop, max(0, start - len(stop) + 1))
            if place >= 0:
                found.append((place + len(stop), place))
        return min(found)[1] if found else None

    def held_back(self, text: bytes | bytearray) -> int:
        """How many of the last bytes may be the beginning of a stop string."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in lengths if self._may_begin(bytes(text[-size:]))), 0)

    def _may_begin(self, tail: bytes) -> bool:
        return any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.stops)


class Utf8Stream:
    """Turns committed bytes into text that can be shown at once."""

    def __init__(self, stops: StopFinder | None = None) -> None:
        self._stops = stops or StopFinder()
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The text that is certain after these bytes; an incomplete character or stop string waits."""
        data = self._held + data
        certain = len(data) - self._stops.held_back(data)
        self._held = data[certain:]
        return self._decoder.decode(data[:certain])

    def finish(self) -> str:
        """The rest, once no more bytes come: what might have become a stop; half a character is dropped."""
        text = self._decoder.decode(self._held)
        self._held = b""
        self._decoder.reset()
        return text
