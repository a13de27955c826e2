"""Draft by lookup: find the longest suffix of the text that occurred earlier, and propose what followed it.

Searches the prompt, the part cut off the prompt, the text right of the cursor, the snippets, recent completions of the
same scope, and files sent for the document. Needs no model, tokens or prefill.

Works on bytes with the C search of `bytes` (`rfind`) instead of a suffix automaton. Bisection finds the longest match
in a few scans, nothing is built per request, and no state has to follow rollbacks. Lookup decoding follows Saxena 2023
(prompt lookup) and Oliaro et al. 2024 (SuffixDecoding).
"""

from __future__ import annotations

import collections.abc
import hashlib
from collections import OrderedDict, deque

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import FinishReason, Owner
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.sequence import Cap, Draft, Sequence

# In bytes. Matches of 3 bytes are right in a quarter of cases, of 8 bytes in 6 of 10 (lab/LOG.md).
MIN_MATCH = 3
MAX_MATCH = 96
RECENT = 16
ROUND = 512  # minimum bytes when repeating a cycle, so that a run of spaces ends the same under every cap
GRAM = 8  # bytes: an 8-byte match is right in 6 of 10 cases, and fits a 64-bit integer
MAX_PLACES = 64  # occurrences of one gram that are compared further, the last ones in the file
MAX_BYTES = 4 << 20  # total size of the files; their indexes take twelve times as much


class SuffixProposer(Proposer):
    """Longest-suffix lookup in the available texts. `min_match` is in bytes."""

    name = "suffix"

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self.min_match = min_match
        self._recent: deque[tuple[str, bytes]] = deque(maxlen=RECENT)  # (scope, text)
        self._files = KeptFiles()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return what followed the longest match, up to each cap."""
        return [self._draft(sequence, cap) for sequence, cap in zip(sequences, caps, strict=True)]

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Also copy from these files in texts of this owner."""
        self._files.keep(owner, files)

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Keep a finished text as a source for other texts of its scope."""
        if reason and len(sequence.generated) > self.min_match:
            text = sequence.context[-MAX_MATCH:] + bytes(sequence.generated)
            self._recent.append((sequence.request.scope, text))

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        known = sequence.known
        own = sequence.context + known
        held = known[len(sequence.generated) :]  # certain, but not yet committed
        size = budget_bytes(sequence, cap)
        length, continuation = self._longest(own, self._sources(sequence), size)
        for index in self._files.of(sequence.request.owner):
            found, end = index.find(own[-MAX_MATCH:], length)
            if found:
                length, continuation = found, index.data[end:]
        if length < self.min_match:
            return NOTHING
        text = held + end_after_spaces(continuation, size)
        confidence = min(0.95, length / (length + 12))
        if not text or not cap.goes_on((confidence,)):
            return NOTHING
        return Draft(text, self.name, (len(text),), (confidence,))

    def _sources(self, sequence: Sequence) -> list[bytes]:
        texts = [_unread(sequence), sequence.request.suffix.encode()]
        texts.extend(snippet.text.encode() for snippet in sequence.request.snippets)
        texts.extend(text for scope, text in reversed(self._recent) if scope == sequence.request.scope)
        return [text for text in texts if text]

    def _longest(self, own: bytes, sources: list[bytes], size: int) -> tuple[int, bytes]:
        """Return the longest match and what followed it.

        A match in the text itself is repeated to at least `size` and ROUND bytes, because drafted text may be copied
        too.
        """
        least = self.min_match - 1
        length, place = longest_match(own, own, len(own) - 1, least)
        best = own[place + length :] if length else b""
        if best:
            best *= 1 + max(size, ROUND) // len(best)
        for text in sources:
            found, place = longest_match(text, own, len(text) - 1, max(least, length))  # excludes a match at its end
            if found:
                length, best = found, text[place + found :]
        return length, best


def _unread(sequence: Sequence) -> bytes:
    """Return the part of the client's prefix that was cut off to fit the prompt budget."""
    sent, read = sequence.request.prefix.encode(), sequence.context + sequence.held
    return sent[: len(sent) - len(read)] if sent.endswith(read) else b""


def longest_match(text: bytes, own: bytes, end: int, beyond: int = 0) -> tuple[int, int]:
    """Find the longest suffix of `own` (at most MAX_MATCH bytes) in text[:end] that is longer than `beyond`.

    Returns (length, offset of the last occurrence), or (0, 0) if there is none. Every suffix of an occurring suffix
    occurs too, so bisection finds the longest. If there is no match, as in most texts, one scan suffices.
    """
    low, high = beyond + 1, min(MAX_MATCH, len(own))
    place = text.rfind(own[len(own) - low :], 0, end) if low <= high else -1
    if place < 0:
        return 0, 0
    while low < high:
        middle = (low + high + 1) // 2
        found = text.rfind(own[len(own) - middle :], 0, end)
        if found < 0:
            high = middle - 1
        else:
            low, place = middle, found
    return low, place


def end_after_spaces(text: bytes, size: int) -> bytes:
    """Return the first `size` bytes, extended to the end of a run of spaces: a cut inside an indent always fails."""
    end = min(size, len(text))
    while 0 < end < len(text) and text[end - 1 : end] in (b" ", b"\t", b"\n") and text[end : end + 1] in (b" ", b"\t"):
        end += 1
    return text[:end]


class FileIndex:
    """Index of one file for lookups of a text's last bytes: all its GRAM-byte substrings, sorted.

    A lookup is a binary search, independent of the file's length.
    """

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

        The suffix has GRAM to MAX_MATCH bytes and must be longer than `beyond`. Of several occurrences, the last one
        is used. Returns (0, 0) if there is none.
        """
        if len(tip) < GRAM:
            return 0, 0
        gram = np.frombuffer(tip[-GRAM:], np.uint64)
        first, end = (int(np.searchsorted(self._grams, gram, side)[0]) for side in ("left", "right"))
        if first == end:
            return 0, 0
        ends = self._places[max(first, end - MAX_PLACES) : end].astype(np.int64) + GRAM
        lengths = self._agreeing(ends, np.frombuffer(tip[-MAX_MATCH:], np.uint8))
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

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._digests: OrderedDict[Owner, tuple[bytes, ...]] = OrderedDict()
        self._indexes: dict[tuple[str, bytes], FileIndex] = {}  # by scope and digest

    def keep(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
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

    def _drop_unused(self) -> None:
        used = {(owner.scope, digest) for owner, digests in self._digests.items() for digest in digests}
        self._indexes = {key: index for key, index in self._indexes.items() if key in used}
