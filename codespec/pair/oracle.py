"""What retokenization costs a pair: how much of a perfect drafter's text survives the way into the target's tokens.

The perfect drafter knows the file. At many places it drafts the true text in whole tokens of its own, until they spell
as many bytes as n average target tokens; the target's own tokens of the file are the judge. What is lost is lost where
a draft ends inside a target token. (The engine asks for a quarter more text and cuts in tokens, so it loses no more.)
Knows tokenizers and texts; knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from codespec.errors import TokenizerError
from codespec.text.align import byte_ends, complete_utf8_length, retokenize_batch, tail_window
from codespec.text.tokenizer import TextTokenizer

LENGTHS = (4, 8, 16)
PLACES = 1500  # drafts a length: the share's standard error is then below 0.5 %
_BEHIND = 256  # bytes in front of a place that a window can need


@dataclass(frozen=True, slots=True)
class Spelled:
    """A text in the target's own tokens and their `ends` in bytes; `drafter_tokens` is how many the drafter needs."""

    data: bytes
    ids: list[int]
    ends: list[int]
    drafter_tokens: int


@dataclass(frozen=True, slots=True)
class Oracle:
    """Drafts of about `tokens` target tokens by a perfect drafter: sums over `rounds` places, in target tokens."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int

    @property
    def survival(self) -> float | None:
        """The share of drafted tokens that the target's own tokens confirm."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_a_round(self) -> float | None:
        """Accepted tokens of one draft, without the target's own token behind it."""
        return self.accepted / self.rounds if self.rounds else None


def spell_texts(target: TextTokenizer, drafter: TextTokenizer, texts: Sequence[str]) -> list[Spelled]:
    """The texts that both tokenizers can spell."""
    spelled = []
    for text in texts:
        try:
            ids, drafter_tokens = target.encode(text), len(drafter.encode(text))
        except TokenizerError:  # a vocabulary without byte tokens: the report counts what is left out
            continue
        data = text.encode("utf-8")
        spelled.append(Spelled(data, ids, byte_ends(target, ids, length=len(data)), drafter_tokens))
    return spelled


def measure(
    target: TextTokenizer, drafter: TextTokenizer, texts: Sequence[Spelled], tokens: int, *, places: int = PLACES
) -> Oracle:
    """Drafts `tokens` target tokens at up to `places` evenly spread places and counts what survives.

    Where the vocabulary is shared ids pass straight through, so everything does.
    """
    at = _places(texts, tokens, places)
    if target.fingerprint == drafter.fingerprint:
        return Oracle(tokens, len(at), tokens * len(at), tokens * len(at))
    windows = [tail_window(text.data[max(0, start - _BEHIND) : start]) for text, _, start in at]
    drafts = _perfect_drafts(drafter, texts, at, windows, tokens)
    drafted = accepted = 0
    candidates = retokenize_batch(target, list(zip(windows, drafts, strict=True)))
    for (text, place, _), ids in zip(at, candidates, strict=True):
        drafted += len(ids)
        accepted += _agreeing(ids, text.ids[place : place + len(ids)])
    return Oracle(tokens, len(at), drafted, accepted)


def _places(texts: Sequence[Spelled], tokens: int, most: int) -> list[tuple[Spelled, int, int]]:
    """(text, the next token's index, its first byte), never so near the end that a draft has no room.

    A tip inside a character is left out: there a drafter has to wait.
    """
    every = [(text, place) for text in texts for place in range(1, len(text.ids) - 3 * tokens)]
    chosen = every[:: max(1, -(-len(every) // most))]
    found = [(text, place, text.ends[place - 1]) for text, place in chosen]
    return [(text, place, start) for text, place, start in found if text.data[start] & 0xC0 != 0x80]


def _perfect_drafts(
    drafter: TextTokenizer,
    texts: Sequence[Spelled],
    at: Sequence[tuple[Spelled, int, int]],
    windows: Sequence[bytes],
    tokens: int,
) -> list[bytes]:
    """The true text behind each place, cut behind the drafter's token that reaches the size of an average draft."""
    total = sum(len(text.ids) for text in texts)
    size = max(1, round(tokens * sum(len(text.data) for text in texts) / max(1, total)))
    ahead = [text.data[start : start + 2 * size + 64] for text, _, start in at]
    units = retokenize_batch(drafter, list(zip(windows, ahead, strict=True)))
    drafts = []
    for ids, text in zip(units, ahead, strict=True):
        ends = accumulate(len(drafter.token_bytes[number]) for number in ids)
        end = next((end for end in ends if end >= size), complete_utf8_length(text))
        drafts.append(text[:end])
    return drafts


def _agreeing(ids: Sequence[int], canonical: Sequence[int]) -> int:
    differing = (n for n, (a, b) in enumerate(zip(ids, canonical, strict=False)) if a != b)
    return next(differing, min(len(ids), len(canonical)))
