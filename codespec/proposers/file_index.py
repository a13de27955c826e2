"""Where the last bytes of a text stand in files that nobody reads: all runs of GRAM bytes of a file, sorted, so that a
lookup costs a bisection however long the file is. Kept by who sent them and for which document, within a bound.

Knows bytes; does not know where they come from.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codespec.types import Owner

GRAM = 8  # bytes: a match of eight is right in six of ten cases, and it is one number of 64 bits
MOST_MATCH = 96  # bytes
MOST_PLACES = 64  # of one run of bytes that are compared further; the last ones of a file
MOST_BYTES = 4 << 20  # of all files that are kept; an index takes twelve times as much


class FileIndex:
    """One file, to be looked up in."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        grams = np.zeros(0, np.uint64)
        if len(data) > GRAM:  # behind the last run nothing follows
            grams = np.lib.stride_tricks.sliding_window_view(self._bytes[:-1], GRAM).copy().view(np.uint64)[:, 0]
        self._places: NDArray[np.int32] = np.argsort(grams, kind="stable").astype(np.int32)
        self._grams = grams[self._places]

    def find(self, tip: bytes, beyond: int = 0) -> tuple[int, int]:
        """The longest end of `tip` (GRAM to MOST_MATCH bytes) that occurs before the file's last byte and is longer
        than `beyond`: its length and where it ends, its last place if there are several; (0, 0) if there is none.
        """
        if len(tip) < GRAM:
            return 0, 0
        gram = np.frombuffer(tip[-GRAM:], np.uint64)
        first, end = (int(np.searchsorted(self._grams, gram, side)[0]) for side in ("left", "right"))
        if first == end:
            return 0, 0
        ends = self._places[max(first, end - MOST_PLACES) : end].astype(np.int64) + GRAM
        lengths = self._agreeing(ends, np.frombuffer(tip[-MOST_MATCH:], np.uint8))
        best = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
        length = int(lengths[best])
        return (length, int(ends[best])) if length > beyond else (0, 0)

    def _agreeing(self, ends: NDArray[np.int64], tip: NDArray[np.uint8]) -> NDArray[np.int64]:
        """How many bytes before each end are those of the tip."""
        back = np.arange(1, len(tip) + 1)
        places = ends[:, None] - back
        same = (self._bytes[np.maximum(places, 0)] == tip[-back]) & (places >= 0)
        return np.where(same.all(axis=1), len(tip), np.argmin(same, axis=1))


class KeptFiles:
    """Files by owner; what was sent longest ago goes first. A file that several documents have is kept once."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._digests: OrderedDict[Owner, tuple[bytes, ...]] = OrderedDict()
        self._indexes: dict[tuple[str, bytes], FileIndex] = {}  # by scope and content

    def keep(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Keeps these files for an owner instead of those before; none forgets them."""
        self._digests.pop(owner, None)
        digests = tuple(hashlib.blake2b(data, digest_size=16).digest() for data in files)
        if digests:
            self._digests[owner] = digests
        for digest, data in zip(digests, files, strict=True):
            if (owner.scope, digest) not in self._indexes:
                self._indexes[owner.scope, digest] = FileIndex(data)
        self._drop_unused()
        while self._digests and sum(len(index.data) for index in self._indexes.values()) > self._most:
            self._digests.popitem(last=False)
            self._drop_unused()

    def of(self, owner: Owner) -> list[FileIndex]:
        """An owner's files, in the order in which they were sent."""
        return [self._indexes[owner.scope, digest] for digest in self._digests.get(owner, ())]

    def _drop_unused(self) -> None:
        used = {(owner.scope, digest) for owner, digests in self._digests.items() for digest in digests}
        self._indexes = {key: index for key, index in self._indexes.items() if key in used}
