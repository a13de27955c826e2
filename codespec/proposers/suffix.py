"""Guesses that the text goes on as it did before: the longest suffix of the text that occurs earlier in the prompt, in
what was cut off it, the text right of the cursor, the snippets, recent completions of the same scope, or files that
were sent for that (file_index). No model, no tokens, no prefill.

Works on bytes with the C search of `bytes` (`rfind`) instead of a suffix automaton: the longest match is found by
bisection in a few scans, nothing is built per request and nothing has to be kept in step with rollbacks. Lookup
decoding after Saxena 2023 (prompt lookup) and Oliaro et al. 2024 (SuffixDecoding).
"""

from __future__ import annotations

import collections.abc
from collections import deque

from codespec.proposers.base import NOTHING, Proposer, budget_bytes
from codespec.proposers.file_index import KeptFiles
from codespec.sequence import Cap, Draft, Sequence
from codespec.types import Owner

# Bytes: three are right in a quarter of cases, eight in six of ten (lab/LOG.md).
MIN_MATCH = 3
MAX_MATCH = 96
RECENT = 16
ROUND = 512  # bytes at least where a text goes round, so that a run of spaces ends alike under every cap


class SuffixProposer(Proposer):
    """Longest-suffix lookup over what is at hand; `min_match` is in bytes."""

    name = "suffix"

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self.min_match = min_match
        self._recent: deque[tuple[str, bytes]] = deque(maxlen=RECENT)  # scope and text
        self._files = KeptFiles()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """What followed the longest match, up to each cap."""
        own = [cap.of(self.name) for cap in caps]
        return [self._draft(s, cap) if cap.tokens else NOTHING for s, cap in zip(sequences, own, strict=True)]

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Copies from these files too, in texts of this owner."""
        self._files.keep(owner, files)

    def release(self, sequence: Sequence) -> None:
        """Remembers the finished text as a source for others of its scope."""
        if len(sequence.generated) > self.min_match:
            text = sequence.context[-MAX_MATCH:] + bytes(sequence.generated)
            self._recent.append((sequence.request.scope, text))

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        known = sequence.known
        own = sequence.context + known
        held = known[len(sequence.generated) :]  # certain, but not committed yet
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
        """The longest match and what followed it; in the text itself that goes round until there are `size` bytes and
        ROUND, for what is guessed may be copied as well.
        """
        least = self.min_match - 1
        length, place = longest_match(own, own, len(own) - 1, least)
        best = own[place + length :] if length else b""
        if best:
            best *= 1 + max(size, ROUND) // len(best)
        for text in sources:
            found, place = longest_match(text, own, len(text) - 1, max(least, length))  # at its end nothing follows
            if found:
                length, best = found, text[place + found :]
        return length, best


def _unread(sequence: Sequence) -> bytes:
    """What the client sent before the text that the target reads, where that was cut to a budget."""
    sent, read = sequence.request.prefix.encode(), sequence.context + sequence.held
    return sent[: len(sent) - len(read)] if sent.endswith(read) else b""


def longest_match(text: bytes, own: bytes, end: int, beyond: int = 0) -> tuple[int, int]:
    """Longest suffix of `own` (at most MAX_MATCH bytes) that occurs in text[:end] and is longer than `beyond`; returns
    (length, where its last occurrence begins), (0, 0) if there is none. A suffix of an occurring suffix occurs too, so
    bisection finds the longest; that nothing does, as in most texts, one scan says.
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
    """The first `size` bytes, longer where that would cut a run of spaces: a cut inside an indent is a sure miss."""
    end = min(size, len(text))
    while 0 < end < len(text) and text[end - 1 : end] in (b" ", b"\t", b"\n") and text[end : end + 1] in (b" ", b"\t"):
        end += 1
    return text[:end]
