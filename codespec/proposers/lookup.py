"""Draft by copying text: the continuation of the longest repeated suffix, or the rest of the request's prediction.

These proposers work on bytes, so they need no model, tokenizer or prefill.
"""

from __future__ import annotations

import collections.abc
import hashlib
import re
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codespec.api.types import PREDICTION, FinishReason, Owner
from codespec.backends.language_model import common_prefix
from codespec.proposers.base import NOTHING, Proposer
from codespec.sequence import Cap, Draft, Sequence

# Lengths of suffixes in bytes. Matches of 3 bytes are right in a quarter of cases, of 8 bytes in 6 of 10 (lab/LOG.md).
MIN_MATCH, MAX_MATCH = 3, 96
RECENT = 16  # completions that are searched
ROUND = 512  # minimum bytes when repeating a cycle, so that a run of spaces ends the same under every cap
GRAM = 8  # bytes per key of a file's index; they fit a 64-bit integer
MAX_OCCURRENCES = 64  # occurrences of one gram that are compared further, the last ones in the file
MAX_BYTES = 4 << 20  # total size of the files; their indexes take twelve times as much
FAR = 32 * 1024  # bytes on both sides of a change that are aligned
# Costs of a word that is not in the prediction, of skipping one of the prediction's words, and of continuing anywhere
# else; chosen on recorded answers of next-edit models (lab/LOG.md).
ADDED, LEFT_OUT, MOVED = 1.0, 0.15, 2.0
SURE = 24  # consecutive matching bytes that make a position reliable
FORGIVEN = (1, 8)  # wrong positions before and after a reliable one; then each doubles the required match
MAX_REQUIRED = 48  # maximum of that match, in bytes
MAX_PLACES = 16  # cheapest places that are compared with an incomplete word
REPLACED, MAX_NAME = 24, 64  # bytes that must match after a replaced name, and its maximum length
MAX_SCOPES = 64  # scopes whose last stop string is stored
_NAME = re.compile(rb"[\w\x80-\xff]+")
_WORD = re.compile(rb"[\w\x80-\xff]+|\n[ \t]*|[ \t]+|[^\w\x80-\xff]")
_LAST_WORD = re.compile(rb"(?:[\w\x80-\xff]+|\n?[ \t]*)\Z")


class SuffixProposer(Proposer):
    """Drafts the continuation of the longest suffix of the text, of at least `min_match` bytes, that occurs elsewhere.

    The proposer searches the text itself, the part of the prefix that was cut off the prompt, the text after the
    cursor, the snippets, recent completions of the same scope, and the files sent for the document. The search is a
    bisection with `bytes.rfind`, which needs a few scans and no index. The method follows prompt lookup (Saxena 2023)
    and SuffixDecoding (Oliaro et al. 2024).
    """

    name = "suffix"

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self.min_match = min_match
        self._recent: deque[tuple[str, bytes]] = deque(maxlen=RECENT)  # (scope, text)
        self._files = CachedFiles()

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return the text that followed each sequence's longest match, up to the sequence's cap."""
        return [self._draft(sequence, cap) for sequence, cap in zip(sequences, caps, strict=True)]

    def look_up_in(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Search these files, instead of any earlier files, when drafting for this owner."""
        self._files.store(owner, files)

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Store a finished text, so that other texts of its scope can copy from it."""
        if reason and len(sequence.generated) > self.min_match:
            text = sequence.context[-MAX_MATCH:] + bytes(sequence.generated)
            self._recent.append((sequence.request.scope, text))

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        known = sequence.known
        own = sequence.context + known
        held = known[len(sequence.generated) :]  # known, but not yet committed
        size = sequence.draft_bytes(cap)
        length, continuation = self._longest(own, self._sources(sequence), size)
        for index in self._files.of(sequence.request.owner):
            found, end = index.find(own[-MAX_MATCH:], length)
            if found:
                length, continuation = found, index.data[end:]
        text = held + end_after_spaces(continuation, size)
        confidence = min(0.95, length / (length + 12))
        if length < self.min_match or not text or not cap.goes_on((confidence,)):
            return NOTHING
        return Draft(text, self.name, (len(text),), (confidence,))

    def _sources(self, sequence: Sequence) -> list[bytes]:
        request, read = sequence.request, sequence.context + sequence.held
        sent = request.prefix.encode()
        cut_off = sent[: len(sent) - len(read)] if sent.endswith(read) else b""
        texts = [cut_off, request.suffix.encode(), *(snippet.text.encode() for snippet in request.snippets)]
        texts.extend(text for scope, text in reversed(self._recent) if scope == request.scope)
        return [text for text in texts if text]

    def _longest(self, own: bytes, sources: list[bytes], size: int) -> tuple[int, bytes]:
        """Return the length of the longest match, and the text after it, repeated if the match is in `own`."""
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


def longest_match(text: bytes, own: bytes, end: int, beyond: int = 0) -> tuple[int, int]:
    """Find the longest suffix of `own` over `beyond` bytes in text[:end]; return its length and offset, or (0, 0)."""
    low, high = beyond + 1, min(MAX_MATCH, len(own))
    place = text.rfind(own[len(own) - low :], 0, end) if low <= high else -1
    if place < 0:
        return 0, 0
    while low < high:  # every suffix of an occurring suffix occurs too
        middle = (low + high + 1) // 2
        found = text.rfind(own[len(own) - middle :], 0, end)
        if found < 0:
            high = middle - 1
        else:
            low, place = middle, found
    return low, place


def end_after_spaces(text: bytes, size: int) -> bytes:
    """Return the first `size` bytes, extended to the end of a run of spaces, because a partial indent is rejected."""
    end = min(size, len(text))
    while 0 < end < len(text) and text[end - 1 : end] in (b" ", b"\t", b"\n") and text[end : end + 1] in (b" ", b"\t"):
        end += 1
    return text[:end]


class FileIndex:
    """Index of one file: all substrings of GRAM bytes, sorted for binary search."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        grams = np.zeros(0, np.uint64)
        if len(data) > GRAM:  # without the last gram, which nothing follows
            grams = np.lib.stride_tricks.sliding_window_view(self._bytes[:-1], GRAM).copy().view(np.uint64)[:, 0]
        self._places: NDArray[np.int32] = np.argsort(grams, kind="stable").astype(np.int32)
        self._grams = grams[self._places]

    def find(self, text: bytes, beyond: int = 0) -> tuple[int, int]:
        """Find the longest suffix of `text` over `beyond` bytes in the file; return its length and end, or (0, 0)."""
        if len(text) < GRAM:
            return 0, 0
        gram = np.frombuffer(text[-GRAM:], np.uint64)
        first, end = (int(np.searchsorted(self._grams, gram, side)[0]) for side in ("left", "right"))
        if first == end:
            return 0, 0
        ends = self._places[max(first, end - MAX_OCCURRENCES) : end].astype(np.int64) + GRAM
        suffix = np.frombuffer(text[-MAX_MATCH:], np.uint8)
        back = np.arange(1, len(suffix) + 1)
        places = ends[:, None] - back
        same = (self._bytes[np.maximum(places, 0)] == suffix[-back]) & (places >= 0)
        lengths = np.where(same.all(axis=1), len(suffix), np.argmin(same, axis=1))
        best = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
        length = int(lengths[best])
        return (length, int(ends[best])) if length > beyond else (0, 0)


class CachedFiles:
    """Caches at most `most` bytes of files and evicts the oldest files first. A scope stores equal files once."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._digests: OrderedDict[Owner, tuple[bytes, ...]] = OrderedDict()
        self._indexes: dict[tuple[str, bytes], FileIndex] = {}  # by scope and digest

    def store(self, owner: Owner, files: collections.abc.Sequence[bytes]) -> None:
        """Replace the files of an owner; an empty list only removes the previous files."""
        self._digests.pop(owner, None)
        digests = tuple(hashlib.blake2b(data, digest_size=16).digest() for data in files)
        if digests:
            self._digests[owner] = digests
        for digest, data in zip(digests, files, strict=True):
            if (owner.scope, digest) not in self._indexes:
                self._indexes[owner.scope, digest] = FileIndex(data)
        while True:
            used = {(owner.scope, digest) for owner, digests in self._digests.items() for digest in digests}
            self._indexes = {key: index for key, index in self._indexes.items() if key in used}
            if sum(len(index.data) for index in self._indexes.values()) <= self._most:
                return
            self._digests.popitem(last=False)

    def of(self, owner: Owner) -> list[FileIndex]:
        """Return the indexes of an owner's files, in the order sent."""
        return [self._indexes[owner.scope, digest] for digest in self._digests.get(owner, ())]


class PredictionProposer(Proposer):
    """Drafts the rest of the request's `prediction`, such as the old version of a file being edited.

    The stop string that ended the last text of the same scope is appended to the prediction. An end token needs no
    draft, because the target chooses that token in the round that accepts the last draft. Predicted outputs are a
    feature of OpenAI's API; drafting from a reference text follows LLMA (Yang et al. 2023).
    """

    name = PREDICTION

    def __init__(self) -> None:
        self._traces: dict[Sequence, Trace] = {}
        self._ends: OrderedDict[str, bytes] = OrderedDict()  # the stop strings that ended the last texts, by scope

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return each prediction's continuation up to its cap, or an empty draft if the text has diverged."""
        return [
            self._draft(sequence, cap) if sequence.request.prediction else NOTHING
            for sequence, cap in zip(sequences, caps, strict=True)
        ]

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Discard a finished sequence's state, and store the stop string that ended the sequence's text."""
        if reason is None:
            return
        self._traces.pop(sequence, None)
        if sequence.request.prediction and sequence.cut is not None and sequence.ending is None:
            stopped = sequence.ids[-1] not in sequence.eos_ids
            self._ends[sequence.request.scope] = bytes(sequence.generated[sequence.cut :]) if stopped else b""
            self._ends.move_to_end(sequence.request.scope)
            if len(self._ends) > MAX_SCOPES:
                self._ends.popitem(last=False)

    def _draft(self, sequence: Sequence, cap: Cap) -> Draft:
        trace = self._traces.get(sequence)
        if trace is None:
            text = sequence.request.prediction.encode()
            end = b"" if sequence.ending is not None else self._ends.get(sequence.request.scope, b"")
            shared = next(n for n in range(len(end), -1, -1) if text.endswith(end[:n]))
            trace = self._traces[sequence] = Trace(text + end[shared:])
        trace.follow(sequence.generated, len(sequence.held))
        confidence = trace.confidence
        size = 2 * sequence.draft_bytes(cap)
        rest = end_after_spaces(trace.text[trace.at : trace.at + 2 * size], size) if trace.at >= 0 else b""
        if not rest or not cap.goes_on((confidence,)):
            return NOTHING
        text = sequence.held_left + rest
        return Draft(text, self.name, (len(text),), (confidence,))


@dataclass(slots=True)
class Trace:
    """The position of one completion in its prediction `text`."""

    text: bytes
    at: int = 0  # offset of the expected next byte, or -1 if the completion has diverged
    read: int = 0  # bytes of the completion that were processed
    followed: int = 0  # matching bytes before `at`
    misses: int = 0  # wrong positions since the last reliable position
    reliable: bool = False  # whether any position was reliable
    alignment: Alignment | None = None  # of the completion's words, from a change until the next reliable position
    changed: tuple[int, int] | None = None  # offsets in `text` and in the completion at which that change began

    @property
    def confidence(self) -> float:
        """The acceptance probability of the next token, estimated from this completion's history."""
        doubts = self.misses + (self.alignment is not None)
        return (self.followed + 8) / (self.followed + 9 + 8 * doubts)

    def follow(self, generated: bytearray, begin: int) -> None:
        """Process new bytes of the completion, which begins at `begin`; after a change, follow the best alignment."""
        new = bytes(generated[begin + self.read :])
        self.read += len(new)
        if self.alignment is not None:
            self.alignment.write(new)
        left = self._advance(new)
        if self._rename(generated, left):
            left = self._advance(new[len(new) - left :])
        if left:
            self.misses += self.at >= 0 and self.followed < SURE
            if self.alignment is None:
                self.alignment = self._align(generated, left)
            at, written = self.alignment.position(), bytes(generated[max(begin, len(generated) - MAX_REQUIRED) :])
            self.followed = common_prefix(written[::-1], self.text[max(0, at - MAX_REQUIRED) : at][::-1])
            required = min(MAX_REQUIRED, 1 << max(0, self.misses - FORGIVEN[self.reliable]))
            self.at = at if self.followed >= required else -1
            self._rename(generated, 0)

    def _advance(self, new: bytes) -> int:
        """Advance the position over the matching new bytes. Return the number of the remaining new bytes."""
        if self.at < 0:
            return len(new)
        same = common_prefix(new, self.text[self.at : self.at + len(new)])
        self.at += same
        self.followed += same
        if self.followed >= SURE:
            self.misses, self.alignment, self.reliable = 0, None, True
        return len(new) - same

    def _align(self, generated: bytearray, size: int) -> Alignment:
        """Begin an alignment. The last `size` bytes of the completion, and possibly the word before, are changed."""
        first = len(generated) - size
        found = _LAST_WORD.search(generated, max(0, first - MAX_NAME), first)
        back = len(found[0]) if found and self.text.endswith(found[0], 0, self.at) else 0
        self.changed = (self.at - back, first - back)
        alignment = Alignment(self.text, self.at - back)
        alignment.write(bytes(generated[first - back :]))
        return alignment

    def _rename(self, generated: bytearray, left: int) -> bool:
        """If the last change renamed an identifier, apply the rename to the rest of the prediction and return True."""
        if self.changed is None or self.at < 0:
            return False
        old_begin, new_begin, end = *self.changed, len(generated) - left
        run = min(self.followed, self.at - old_begin, end - new_begin)
        if run < REPLACED:
            return False
        self.changed = None
        while run and (_inside_name(self.text, self.at - run) or _inside_name(generated, end - run)):
            run -= 1  # both names end alike
        old = self.text[old_begin : self.at - run].strip()
        new = bytes(generated[new_begin : end - run]).strip()
        if not (_NAME.fullmatch(old) and _NAME.fullmatch(new) and max(len(old), len(new)) <= MAX_NAME):
            return False
        whole_name = rb"(?<![\w\x80-\xff])%s(?![\w\x80-\xff])" % re.escape(old)
        self.text = self.text[: self.at] + re.sub(whole_name, new, self.text[self.at :])
        self.alignment = None
        return True


def _inside_name(text: bytes | bytearray, offset: int) -> bool:
    return offset > 0 and _NAME.fullmatch(text, offset - 1, offset + 1) is not None


class Alignment:
    """The cheapest alignment of the words of a changed text with a prediction, from offset `begin` of `text`."""

    def __init__(self, text: bytes, begin: int) -> None:
        first = max(0, begin - FAR)  # only a window around the change is aligned, which bounds the cost of a round
        before, after = _WORD.findall(text, first, begin), _WORD.findall(text, begin, begin + FAR)
        words, numbers = before + after, dict[bytes, int]()
        self._text, self._tail, self._numbers = text, b"", numbers
        self._words: NDArray[np.int32] = np.array([numbers.setdefault(w, len(numbers)) for w in words], np.int32)
        self._offsets = np.cumsum([first, *map(len, words)])
        costs = np.full(len(words) + 1, np.inf)
        costs[len(before)] = 0.0
        self._costs = _with_jumps(costs)  # [i]: of having written the complete words instead of the window's first i

    def write(self, new: bytes) -> None:
        """Append at least one byte to the changed text."""
        *words, self._tail = _WORD.findall(self._tail + new)
        for word in words:
            same = np.flatnonzero(self._words == self._numbers.get(word, -1))
            costs = self._costs + ADDED
            costs[same + 1] = np.minimum(costs[same + 1], self._costs[same])
            self._costs = _with_jumps(costs)

    def position(self) -> int:
        """Return the offset of the likely next byte, allowing for an incomplete last word."""
        best = int(self._costs.argmin())
        near = np.flatnonzero(self._costs < self._costs[best] + ADDED)
        for place in near[np.argsort(self._costs[near], kind="stable")][:MAX_PLACES]:
            offset = int(self._offsets[place])
            if self._text.startswith(self._tail, offset):
                return offset + len(self._tail)
        return int(self._offsets[best])


def _with_jumps(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs, reduced where skipping words of the prediction or continuing anywhere else is cheaper."""
    place = np.arange(len(costs)) * LEFT_OUT
    left_out = np.minimum.accumulate(costs - place) + place
    result: NDArray[np.float64] = np.minimum(left_out, costs.min() + MOVED)
    return result
