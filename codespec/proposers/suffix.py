"""Draft by lookup: find the longest suffix of the text that occurred earlier, and propose what followed it.

Searches the prompt, the part cut off the prompt, the text right of the cursor, the snippets, recent completions of the
same scope, and files sent for the document (file_index). Needs no model, tokens or prefill.

Works on bytes with the C search of `bytes` (`rfind`) instead of a suffix automaton. Bisection finds the longest match
in a few scans, nothing is built per request, and no state has to follow rollbacks. Lookup decoding follows Saxena 2023
(prompt lookup) and Oliaro et al. 2024 (SuffixDecoding).
"""

from __future__ import annotations

import collections.abc
from collections import deque
from collections.abc import Mapping

from codespec.contract.types import Owner
from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.file_index import KeptFiles
from codespec.sequence import Cap, Draft, Sequence

# In bytes. Matches of 3 bytes are right in a quarter of cases, of 8 bytes in 6 of 10 (lab/LOG.md).
MIN_MATCH = 3
MAX_MATCH = 96
RECENT = 16
ROUND = 512  # minimum bytes when repeating a cycle, so that a run of spaces ends the same under every cap


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
        own = [cap.of(self.name) for cap in caps]
        return [self._draft(s, cap) if cap.tokens else NOTHING for s, cap in zip(sequences, own, strict=True)]

    @property
    def files(self) -> Mapping[Owner, tuple[bytes, ...]]:
        """The kept files."""
        return self._files.all()

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Also copy from these files in texts of this owner."""
        self._files.keep(owner, files)

    def release(self, sequence: Sequence) -> None:
        """Keep the finished text as a source for other texts of its scope."""
        if len(sequence.generated) > self.min_match:
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
