"""Convert text between vocabularies: retokenize drafts, update a drafter's tokens, and apply token healing.

Models exchange text as bytes, because each model has its own token ids. Matching two vocabularies through their text is
known as string-level exact match (SLEM, Timor et al. 2025).

Token healing removes the last tokens of a prompt and requires the completion to begin with the bytes of these tokens.
Without healing, a model that has learned "return" as one token would have to continue the two tokens of "retu", which
are a rare sequence in training data (Lundberg 2023, guidance).
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from weakref import WeakKeyDictionary

from codespec.text.tokenizer import TextTokenizer

# A window only has to contain the pre-tokenizer's piece at the start of the draft. At 20,000 positions of our source,
# 4 bytes gave the same ids as 128, and 8 bytes took 0.6 times as long as 64.
_WINDOW = 8
_REJOIN = 8  # maximum number of matching tokens to encode again with the new text
_VOCABULARIES: WeakKeyDictionary[TextTokenizer, HeldVocabulary] = WeakKeyDictionary()
_FURTHEST = 4  # maximum number of tokens that healing removes
_CACHED = 256  # maximum number of cached results of `allowed_ids`


def retokenize_batch(tokenizer: TextTokenizer, pairs: Sequence[tuple[bytes, bytes]]) -> list[list[int]]:
    """Return the token ids of each draft; a pair is the end of the preceding text (see `tail_window`) and a draft.

    An incomplete last character of a draft is not encoded. A draft is encoded together with the preceding text, or
    alone if a token would cross the boundary between the two.
    """
    ends = [complete_utf8_length(window[-3:] + draft) - len(window[-3:]) for window, draft in pairs]
    drafts = [draft[: max(0, end)] for (_, draft), end in zip(pairs, ends, strict=True)]
    joined = [window + draft if draft else b"" for (window, _), draft in zip(pairs, drafts, strict=True)]
    spelled = zip(tokenizer.spell(joined), pairs, strict=True)
    cuts = [_after(tokenizer, ids, len(window)) for ids, (window, _) in spelled]
    alone = [place for place, cut in enumerate(cuts) if cut is None and drafts[place]]
    if alone:
        for place, ids in zip(alone, tokenizer.spell([drafts[place] for place in alone]), strict=True):
            cuts[place] = ids
    return [cut or [] for cut in cuts]


def tail_window(text: bytes | bytearray, size: int = _WINDOW) -> bytes:
    """Return the last `size` bytes of a text, extended by up to `size` bytes to where a pre-tokenizer splits text.

    The result starts after a line break if possible, else before a space, else at a character boundary.
    """
    if len(text) <= size:
        return bytes(text)
    tail = bytes(text[-2 * size - 3 :])  # three more bytes, so that a character starts before `latest`
    latest = len(tail) - size
    start = tail.rfind(b"\n", 0, latest) + 1
    if not start:
        start = tail.rfind(b" ", 0, latest + 1)
    if start < 0:
        start = latest
        while start and tail[start] & 0xC0 == 0x80:
            start -= 1
    return tail[start:]


@dataclass(frozen=True, slots=True)
class Resync:
    """An update of a drafter's token ids: keep the first `kept` ids, then append `new_ids`."""

    kept: int
    new_ids: list[int]
    end: int  # bytes of the text that the updated ids encode: all, unless the vocabulary lacks a byte


def byte_ends(tokenizer: TextTokenizer, ids: Sequence[int], *, length: int | None = None) -> list[int]:
    """Return the byte offset at which each token ends in the text; control tokens have no bytes.

    `length` is the size of the text in bytes, without a dummy prefix, whose bytes are not counted.
    """
    ends = list(accumulate(len(tokenizer.token_bytes[number]) for number in ids))
    surplus = ends[-1] - length if ends and length is not None else 0
    return [max(0, end - surplus) for end in ends]


def resync(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, *, known: int = 0) -> Resync:
    """Return the update after which `ids`, whose tokens end at the byte offsets `ends`, encode `text`.

    Tokens that end at or before byte `known` are not compared with the text, so the cost depends on the size of the
    change, not of the text. The last matching tokens are replaced if the tokenizer would join them with new text.
    Invalid UTF-8 and an incomplete last character are encoded as byte tokens.
    """
    agreeing = _count_agreeing(tokenizer, ids, ends, text, known)
    covered = ends[agreeing - 1] if agreeing else 0
    if covered == len(text):
        return Resync(agreeing, [], covered)
    first = agreeing  # the first id to encode again: `_REJOIN` back, or after a control token
    while first and agreeing - first < _REJOIN and tokenizer.token_bytes[ids[first - 1]]:
        first -= 1
    base = ends[first - 1] if first else 0
    spelled = tokenizer.spell([text[base:]])[0]
    bounds = list(accumulate((len(tokenizer.token_bytes[number]) for number in spelled), initial=base))
    kept = agreeing
    while (joint := ends[kept - 1] if kept else 0) not in bounds:
        kept -= 1  # ends at `first` at the latest, because `base` is a bound
    return Resync(kept, spelled[bounds.index(joint) :], bounds[-1])


def complete_utf8_length(data: bytes) -> int:
    """Return the size of `data` in bytes without an incomplete last character; invalid bytes count as characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-3:])
    return len(data) - len(decoder.getstate()[0])


def _after(tokenizer: TextTokenizer, ids: list[int], head: int) -> list[int] | None:
    length = 0
    for place, number in enumerate(ids):
        if length >= head:
            return ids[place:] if length == head else None
        length += len(tokenizer.token_bytes[number])
    return [] if length == head else None


def _count_agreeing(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, known: int) -> int:
    count = bisect_right(ends, known)
    start = ends[count - 1] if count else 0
    for number, end in zip(ids[count:], ends[count:], strict=True):
        # A dummy prefix makes the first token's bytes longer than its share of the text.
        piece = tokenizer.token_bytes[number][start - end :] if end > start else b""
        if not text.startswith(piece, start):
            break
        count, start = count + 1, end
    return count


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """The last `count` token ids of a prompt, which token healing removes, and the bytes of these tokens."""

    count: int = 0
    data: bytes = b""


class HeldVocabulary:
    """A vocabulary sorted by the bytes of its tokens, so that tokens are found by bisection."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        table = tokenizer.token_bytes
        self.token_bytes = table
        self._ids = sorted((number for number, data in enumerate(table) if data), key=table.__getitem__)
        self._bytes = [table[number] for number in self._ids]
        self.allowed_ids = lru_cache(maxsize=_CACHED)(self._find_allowed)

    def has_longer(self, start: bytes) -> bool:
        """Return whether the vocabulary has a token that starts with `start` and is longer."""
        first, stop = self._range(start)
        return first < stop and len(self._bytes[stop - 1]) > len(start)

    def _find_allowed(self, held: bytes) -> list[int]:
        """Return the ids, in ascending order, of tokens whose bytes start with `held` or are a prefix of `held`."""
        first, stop = self._range(held)
        allowed = set(self._ids[first:stop])
        for end in range(1, len(held)):
            part = held[:end]
            allowed.update(self._ids[bisect_left(self._bytes, part) : bisect_right(self._bytes, part)])
        return sorted(allowed)

    def _range(self, start: bytes) -> tuple[int, int]:
        rest = start.rstrip(b"\xff")
        successor = rest[:-1] + bytes([rest[-1] + 1]) if rest else None
        stop = len(self._bytes) if successor is None else bisect_left(self._bytes, successor)
        return bisect_left(self._bytes, start), stop


def held_vocabulary(tokenizer: TextTokenizer) -> HeldVocabulary:
    """Return the sorted vocabulary of a tokenizer, cached for as long as the tokenizer lives."""
    if tokenizer not in _VOCABULARIES:
        _VOCABULARIES[tokenizer] = HeldVocabulary(tokenizer)
    return _VOCABULARIES[tokenizer]


def stable_boundary(vocabulary: HeldVocabulary, ids: Sequence[int]) -> HeldBytes:
    """Return the last tokens of a prompt that healing removes: the most, up to four, that begin a longer token."""
    held = HeldBytes()
    data = b""
    for count, number in enumerate(reversed(ids[-_FURTHEST:]), start=1):
        if not vocabulary.token_bytes[number]:
            break
        data = vocabulary.token_bytes[number] + data
        if vocabulary.has_longer(data):
            held = HeldBytes(count, data)
    return held
