"""Token healing: back up a prompt that ends inside a token and make the completion spell the held bytes.

Without healing, a model that has learned "return" as one token meets "retu" as two pieces that it rarely saw in
training (Lundberg 2023, guidance). Depends on the vocabulary only, not on models or logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from codespec.text.tokenizer import TextTokenizer

_VOCABULARIES: WeakKeyDictionary[TextTokenizer, HeldVocabulary] = WeakKeyDictionary()
_FURTHEST = 4  # tokens; longer spans are never one word
_CACHED = 256


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
            self._allowed[held] = sorted({*self._beginning_with(held), *self._within(held)})
            if len(self._allowed) > _CACHED:
                self._allowed.popitem(last=False)
        self._allowed.move_to_end(held)
        return self._allowed[held]

    def _beginning_with(self, start: bytes) -> list[int]:
        first, stop = self._range(start)
        return self._ids[first:stop]

    def _within(self, held: bytes) -> list[int]:
        ids: list[int] = []
        for end in range(1, len(held)):
            place = bisect_left(self._bytes, held[:end])
            while place < len(self._bytes) and self._bytes[place] == held[:end]:
                ids.append(self._ids[place])
                place += 1
        return ids

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
