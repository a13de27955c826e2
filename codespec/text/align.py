"""Carrying text from one vocabulary to another: retokenization, and bringing a drafter's tokens up to date.

Each model owns its own tokens; between different vocabularies only bytes cross, and here they cross. Pure
functions of a tokenizer, ids and bytes; knows no model and no cache. Matching two vocabularies through
their text is string-level exact match (SLEM, Timor et al. 2025); the cut is by cumulative token bytes.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from codespec.text.tokenizer import TextTokenizer

_REJOIN = 8  # kept tokens that may be spelled anew, so that the joint is the tokenizer's own


def retokenize(tokenizer: TextTokenizer, window: bytes, draft: bytes) -> list[int]:
    """The ids that spell `draft` where it follows `window` (about the last 64 bytes before it)."""
    return retokenize_batch(tokenizer, [(window, draft)])[0]


def retokenize_batch(tokenizer: TextTokenizer, pairs: Sequence[tuple[bytes, bytes]]) -> list[list[int]]:
    """`retokenize` of several (window, draft) pairs together; where a draft needs it, it is encoded once more.

    The ids' bytes are a prefix of the draft's: all of it up to an incomplete last character. Where no token
    boundary falls between window and draft, the draft is spelled alone.
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


def tail_window(text: bytes | bytearray, size: int = 64) -> bytes:
    """The last `size` bytes of a text and a few more, from where pre-tokenizers start anew.

    That is behind a line break, else before a space, else at a character, within the `size` bytes before.
    """
    if len(text) <= size:
        return bytes(text)
    tail = bytes(text[-2 * size - 3 :])  # three more, so that a character begins before `latest`
    latest = len(tail) - size
    start = tail.rfind(b"\n", 0, latest) + 1
    if not start:
        start = tail.rfind(b" ", 0, latest + 1)
    return tail[start if start >= 0 else _character_start(tail, latest) :]


@dataclass(frozen=True, slots=True)
class Resync:
    """How to bring a drafter's ids up to a text: keep the first `kept`, then append `new_ids`.

    `end` is how many bytes of the text they spell together: all, unless the vocabulary has no token for
    something.
    """

    kept: int
    new_ids: list[int]
    end: int


def byte_ends(tokenizer: TextTokenizer, ids: Sequence[int], *, length: int | None = None) -> list[int]:
    """Where each id ends in the text it spells, in bytes; control tokens end where the one before does.

    With `length`, the bytes of the whole text, a dummy prefix's space counts before the text's beginning.
    """
    ends = list(accumulate(len(tokenizer.token_bytes[number]) for number in ids))
    surplus = ends[-1] - length if ends and length is not None else 0
    return [max(0, end - surplus) for end in ends]


def resync(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, *, known: int = 0) -> Resync:
    """Compares what `ids` spell (up to their byte `ends`) with the true `text` and says what to change.

    Ids that end at or before byte `known` are taken as right, so the work grows with what changed, not with
    the text. Kept tokens at the joint are given up where the tokenizer itself would spell across it. Bytes
    that are no UTF-8, and a last character that is incomplete, are spelled byte by byte.
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
        kept -= 1  # ends at `first` at the latest, whose joint is `base`
    return Resync(kept, spelled[bounds.index(joint) :], bounds[-1])


def complete_utf8_length(data: bytes) -> int:
    """How many leading bytes do not end inside a character; what can never become one counts as complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-3:])
    return len(data) - len(decoder.getstate()[0])


def _whole_characters(window: bytes, draft: bytes) -> bytes:
    """The draft without a last character that it leaves incomplete."""
    end = complete_utf8_length(window[-3:] + draft) - len(window[-3:])
    return draft[: max(0, end)]


def _after(tokenizer: TextTokenizer, ids: list[int], head: int) -> list[int] | None:
    """The ids behind the first `head` bytes; None where no token ends there."""
    length = 0
    for place, number in enumerate(ids):
        if length >= head:
            return ids[place:] if length == head else None
        length += len(tokenizer.token_bytes[number])
    return [] if length == head else None


def _count_agreeing(tokenizer: TextTokenizer, ids: Sequence[int], ends: Sequence[int], text: bytes, known: int) -> int:
    """How many leading ids spell the beginning of the text."""
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
    """The first kept id that may be spelled anew: a few back, behind any control token."""
    first = agreeing
    while first and agreeing - first < _REJOIN and tokenizer.token_bytes[ids[first - 1]]:
        first -= 1
    return first


def _character_start(text: bytes, offset: int) -> int:
    while offset and offset < len(text) and text[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
