"""Carry text between vocabularies: retokenize drafts and bring a drafter's tokens up to date.

Each model owns its tokens; only bytes cross between vocabularies. All functions are pure in a tokenizer, ids and
bytes. Matching two vocabularies through their text is string-level exact match (SLEM, Timor et al. 2025); the cut
is at cumulative token bytes.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from codespec.text.tokenizer import TextTokenizer

# Only the pre-tokenizer's piece that contains the start of the draft matters, such as a run of punctuation, so a few
# bytes suffice: at 20,000 places of our source, 4 bytes give the same ids as 128, and 8 take 0.6 times as long as 64.
_WINDOW = 8
_REJOIN = 8  # maximum number of kept tokens to retokenize at the joint, as the tokenizer itself would split it


def retokenize(tokenizer: TextTokenizer, window: bytes, draft: bytes) -> list[int]:
    """Return the ids that spell `draft` after `window` (see `tail_window`)."""
    return retokenize_batch(tokenizer, [(window, draft)])[0]


def retokenize_batch(tokenizer: TextTokenizer, pairs: Sequence[tuple[bytes, bytes]]) -> list[list[int]]:
    """Retokenize several (window, draft) pairs together, with a second encoding only for the drafts that need it.

    The ids' bytes are a prefix of the draft's: all of it up to an incomplete last character. If no token boundary falls
    between window and draft, the draft is encoded alone.
    """
    drafts = [_whole_characters(window, draft) for window, draft in pairs]
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
    return tail[start if start >= 0 else _character_start(tail, latest) :]


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
    first = _rejoin_from(tokenizer, ids, agreeing)
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


def _whole_characters(window: bytes, draft: bytes) -> bytes:
    """Return the draft without an incomplete last character."""
    end = complete_utf8_length(window[-3:] + draft) - len(window[-3:])
    return draft[: max(0, end)]


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


def _rejoin_from(tokenizer: TextTokenizer, ids: Sequence[int], agreeing: int) -> int:
    """Return the index of the first kept id to retokenize: `_REJOIN` back, or after a control token."""
    first = agreeing
    while first and agreeing - first < _REJOIN and tokenizer.token_bytes[ids[first - 1]]:
        first -= 1
    return first


def _character_start(text: bytes, offset: int) -> int:
    while offset and offset < len(text) and text[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
