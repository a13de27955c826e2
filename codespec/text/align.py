"""Carry text between vocabularies: retokenize drafts, bring a drafter's tokens up to date, heal the end of a prompt.

Each model owns its tokens; only bytes cross between vocabularies. All functions are pure in a tokenizer, ids and
bytes. Matching two vocabularies through their text is string-level exact match (SLEM, Timor et al. 2025); the cut
is at cumulative token bytes.

Token healing backs up a prompt that ends inside a token and makes the completion spell the held bytes. Without it, a
model that has learned "return" as one token meets "retu" as two pieces that it rarely saw in training (Lundberg 2023,
guidance).
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakKeyDictionary

from codespec.text.tokenizer import TextTokenizer

# Only the pre-tokenizer's piece that contains the start of the draft matters, such as a run of punctuation, so a few
# bytes suffice: at 20,000 places of our source, 4 bytes give the same ids as 128, and 8 take 0.6 times as long as 64.
_WINDOW = 8
_REJOIN = 8  # maximum number of kept tokens to retokenize at the joint, as the tokenizer itself would split it
_VOCABULARIES: WeakKeyDictionary[TextTokenizer, HeldVocabulary] = WeakKeyDictionary()
_FURTHEST = 4  # tokens that healing holds back; longer spans are never one word
_CACHED = 256  # held bytes whose ids are kept


def retokenize_batch(tokenizer: TextTokenizer, pairs: Sequence[tuple[bytes, bytes]]) -> list[list[int]]:
    """Return the ids that spell each draft after its window (see `tail_window`), for (window, draft) pairs.

    The ids' bytes are a prefix of the draft's: all of it up to an incomplete last character. If no token boundary falls
    between window and draft, the draft is encoded alone.
    """
    ends = [complete_utf8_length(window[-3:] + draft) - len(window[-3:]) for window, draft in pairs]
    drafts = [draft[: max(0, end)] for (_, draft), end in zip(pairs, ends, strict=True)]
    joined = [window + draft if draft else b"" for (window, _), draft in zip(pairs, drafts, strict=True)]
    cuts = [
        _after(tokenizer, ids, len(window)) for ids, (window, _) in zip(tokenizer.spell(joined), pairs, strict=True)
    ]
    alone = [place for place, cut in enumerate(cuts) if cut is None and drafts[place]]
    if alone:
        for place, ids in zip(alone, tokenizer.spell([drafts[place] for place in alone]), strict=True):
            cuts[place] = ids
    return [cut or [] for cut in cuts]


def tail_window(text: bytes | bytearray, size: int = _WINDOW) -> bytes:
    """Return the last `size` bytes of a text, extended back to a point where pre-tokenizers start afresh.

    That point is after a line break, else before a space, else at a character, within the `size` bytes before.
    """
    if len(text) <= size:
        return bytes(text)
    tail = bytes(text[-2 * size - 3 :])  # three more, because a character must start before `latest`
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
    """Update of a drafter's ids: keep the first `kept`, then append `new_ids`.

    `end` is the number of bytes of the text that they spell together: all, unless the vocabulary cannot spell
    something.
    """

    kept: int
    new_ids: list[int]
    end: int


def byte_ends(tokenizer: TextTokenizer, ids: Sequence[int], *, length: int | None = None) -> list[int]:
    """Return the byte offset at which each id ends in its text; a control token ends where its predecessor does.

    With `length`, the bytes of the whole text, the space of a dummy prefix counts before the start of the text.
    """
    ends = list(accumulate(len(tokenizer.token_bytes[number]) for number in ids))
    surplus = ends[-1] - length if ends and length is not None else 0
    return [max(0, end - surplus) for end in ends]


def resync(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, *, known: int = 0) -> Resync:
    """Compare the text that `ids` spell (up to their byte `ends`) with the true `text` and return the update.

    Ids that end at or before byte `known` are taken as correct, so the work grows with the change, not with the text.
    Kept tokens at the joint are dropped if the tokenizer itself would put a token across it. Bytes that are not UTF-8
    and an incomplete last character are spelled byte by byte.
    """
    agreeing = _count_agreeing(tokenizer, ids, ends, text, known)
    covered = ends[agreeing - 1] if agreeing else 0
    if covered == len(text):
        return Resync(agreeing, [], covered)
    first = agreeing  # kept id to retokenize: `_REJOIN` back, or after a control token
    while first and agreeing - first < _REJOIN and tokenizer.token_bytes[ids[first - 1]]:
        first -= 1
    base = ends[first - 1] if first else 0
    spelled = tokenizer.spell([text[base:]])[0]
    bounds = list(accumulate((len(tokenizer.token_bytes[number]) for number in spelled), initial=base))
    kept = agreeing
    while (joint := ends[kept - 1] if kept else 0) not in bounds:
        kept -= 1  # stops at `first` at the latest, where the joint is `base`
    return Resync(kept, spelled[bounds.index(joint) :], bounds[-1])


def complete_utf8_length(data: bytes) -> int:
    """Return how many leading bytes do not end inside a character; invalid bytes count as complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-3:])
    return len(data) - len(decoder.getstate()[0])


def _after(tokenizer: TextTokenizer, ids: list[int], head: int) -> list[int] | None:
    """Return the ids after the first `head` bytes, or None if no token ends there."""
    length = 0
    for place, number in enumerate(ids):
        if length >= head:
            return ids[place:] if length == head else None
        length += len(tokenizer.token_bytes[number])
    return [] if length == head else None


def _count_agreeing(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, known: int) -> int:
    """Return how many leading ids spell the beginning of the text."""
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
    """Result of healing: the last `count` ids of a prompt, and the bytes that they spell."""

    count: int = 0
    data: bytes = b""


class HeldVocabulary:
    """Vocabulary sorted by bytes. Bisection finds the ids that are consistent with held bytes."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        table = tokenizer.token_bytes
        self.token_bytes = table
        self._ids = sorted((number for number, data in enumerate(table) if data), key=table.__getitem__)
        self._bytes = [table[number] for number in self._ids]
        self._allowed: OrderedDict[bytes, list[int]] = OrderedDict()

    def has_longer(self, start: bytes) -> bool:
        """Return whether a token starts with `start` and is longer."""
        first, stop = self._range(start)
        return first < stop and len(self._bytes[stop - 1]) > len(start)

    def allowed_ids(self, held: bytes) -> list[int]:
        """Return the ids consistent with `held`, ascending: they start with it or spell a prefix of it."""
        if held not in self._allowed:
            first, stop = self._range(held)
            within = (self._exactly(held[:end]) for end in range(1, len(held)))
            self._allowed[held] = sorted(set(self._ids[first:stop]).union(*within))
            if len(self._allowed) > _CACHED:
                self._allowed.popitem(last=False)
        self._allowed.move_to_end(held)
        return self._allowed[held]

    def _exactly(self, data: bytes) -> list[int]:
        return self._ids[bisect_left(self._bytes, data) : bisect_right(self._bytes, data)]

    def _range(self, start: bytes) -> tuple[int, int]:
        """Return the index range of the tokens that start with `start`, in byte order."""
        rest = start.rstrip(b"\xff")
        successor = rest[:-1] + bytes([rest[-1] + 1]) if rest else None
        stop = len(self._bytes) if successor is None else bisect_left(self._bytes, successor)
        return bisect_left(self._bytes, start), stop


def held_vocabulary(tokenizer: TextTokenizer) -> HeldVocabulary:
    """Return the sorted vocabulary of a tokenizer, built once."""
    if tokenizer not in _VOCABULARIES:
        _VOCABULARIES[tokenizer] = HeldVocabulary(tokenizer)
    return _VOCABULARIES[tokenizer]


def stable_boundary(vocabulary: HeldVocabulary, ids: Sequence[int]) -> HeldBytes:
    """Return how much of a prompt's tail to hold back.

    Backs up to the earliest boundary, at most four tokens back, after which one token spells the rest of the prompt and
    more. Never holds back control tokens.
    """
    held = HeldBytes()
    data = b""
    for count, number in enumerate(reversed(ids[-_FURTHEST:]), start=1):
        if not vocabulary.token_bytes[number]:
            break
        data = vocabulary.token_bytes[number] + data
        if vocabulary.has_longer(data):
            held = HeldBytes(count, data)
    return held
