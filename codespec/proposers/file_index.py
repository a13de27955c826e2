"""Index files for lookups of a text's last bytes: all GRAM-byte substrings of a file, sorted.

A lookup is a binary search, independent of the file's length. Files are kept per owner, up to a total size.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codespec.contract.types import Owner

GRAM = 8  # bytes: an 8-byte match is right in 6 of 10 cases, and fits a 64-bit integer
MOST_MATCH = 96  # bytes
MOST_PLACES = 64  # occurrences of one gram that are compared further, the last ones in the file
MOST_BYTES = 4 << 20  # total size of the files; their indexes take twelve times as much


class FileIndex:
    """Index of one file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        grams = np.zeros(0, np.uint64)
        if len(data) > GRAM:  # without the last gram, which nothing follows
            grams = np.lib.stride_tricks.sliding_window_view(self._bytes[:-1], GRAM).copy().view(np.uint64)[:, 0]
        self._places: NDArray[np.int32] = np.argsort(grams, kind="stable").astype(np.int32)
        self._grams = grams[self._places]

    def find(self, tip: bytes, beyond: int = 0) -> tuple[int, int]:
        """Return the length and the end offset of the longest suffix of `tip` that occurs before the file's last byte.

        The suffix has GRAM to MOST_MATCH bytes and must be longer than `beyond`. Of several occurrences, the last one
        is used. Returns (0, 0) if there is none.
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
        """Return, for each end, the number of bytes before it that match the end of the tip."""
        back = np.arange(1, len(tip) + 1)
        places = ends[:, None] - back
        same = (self._bytes[np.maximum(places, 0)] == tip[-back]) & (places >= 0)
        return np.where(same.all(axis=1), len(tip), np.argmin(same, axis=1))


class KeptFiles:
    """Files by owner; the least recently sent are evicted first. Documents of a scope share identical files."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._digests: OrderedDict[Owner, tuple[bytes, ...]] = OrderedDict()
        self._indexes: dict[tuple[str, bytes], FileIndex] = {}  # by scope and digest

    def keep(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Replace the files of an owner. An empty list removes them."""
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
        """Return an owner's files in the order sent."""
        return [self._indexes[owner.scope, digest] for digest in self._digests.get(owner, ())]

    def all(self) -> dict[Owner, tuple[bytes, ...]]:
        """Return the files by owner, the least recently sent first."""
        return {owner: tuple(index.data for index in self.of(owner)) for owner in self._digests}

    def _drop_unused(self) -> None:
        used = {(owner.scope, digest) for owner, digests in self._digests.items() for digest in digests}
        self._indexes = {key: index for key, index in self._indexes.items() if key in used}
