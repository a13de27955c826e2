"""Measure the retokenization loss of a pair: how much of a perfect drafter's text survives in target tokens.

The perfect drafter knows the file. At many positions it drafts the true text in whole drafter tokens, until they cover
as many bytes as n average target tokens. The draft is then compared with the target's own tokens of the file. A loss
means that a draft ends inside a target token. (The engine requests a quarter more text and cuts by tokens, so it loses
at most that much.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from codespec.errors import TokenizerError
from codespec.text.align import byte_ends, complete_utf8_length, retokenize_batch, tail_window
from codespec.text.tokenizer import TextTokenizer

LENGTHS = (4, 8, 16)
POSITIONS = 1500  # drafts per length, for a standard error of the share below 0.5 %
_WINDOW = 32  # bytes before a position that a tail window may need


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text in target tokens with their byte `ends`. `drafter_tokens` is its length in drafter tokens."""

    data: bytes
    ids: list[int]
    ends: list[int]
    drafter_tokens: int


@dataclass(frozen=True, slots=True)
class PerfectDrafts:
    """Perfect drafts of about `tokens` target tokens: sums over `rounds` positions, in target tokens."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int

    @property
    def survival(self) -> float | None:
        """The share of drafted tokens that match the target's own tokens."""
        return self.accepted / self.drafted if self.drafted else None


def tokenize_texts(target: TextTokenizer, drafter: TextTokenizer, texts: Sequence[str]) -> list[TokenizedText]:
    """Tokenize the texts that both tokenizers can encode."""
    tokenized = []
    for text in texts:
        try:
            ids, drafter_tokens = target.encode(text), len(drafter.encode(text))
        except TokenizerError:  # a vocabulary without byte tokens; the report counts skipped texts
            continue
        data = text.encode("utf-8")
        tokenized.append(TokenizedText(data, ids, byte_ends(target, ids, length=len(data)), drafter_tokens))
    return tokenized


def measure_perfect_drafts(
    target: TextTokenizer,
    drafter: TextTokenizer,
    texts: Sequence[TokenizedText],
    tokens: int,
    *,
    positions: int = POSITIONS,
) -> PerfectDrafts:
    """Draft `tokens` target tokens at up to `positions` evenly spaced positions and count the survivors.

    With a shared vocabulary, ids are passed through directly, so all survive.
    """
    at = _positions(texts, tokens, positions)
    if target.fingerprint == drafter.fingerprint:
        return PerfectDrafts(tokens, len(at), tokens * len(at), tokens * len(at))
    bytes_per_token = sum(len(text.data) for text in texts) / max(1, sum(len(text.ids) for text in texts))
    size = max(1, round(tokens * bytes_per_token))
    windows = [tail_window(text.data[max(0, start - _WINDOW) : start]) for text, _, start in at]
    ahead = [text.data[start : start + 2 * size + 64] for text, _, start in at]
    drafts = []
    for ids, data in zip(retokenize_batch(drafter, list(zip(windows, ahead, strict=True))), ahead, strict=True):
        ends = accumulate(len(drafter.token_bytes[number]) for number in ids)
        drafts.append(data[: next((end for end in ends if end >= size), complete_utf8_length(data))])
    drafted = accepted = 0
    candidates = retokenize_batch(target, list(zip(windows, drafts, strict=True)))
    for (text, index, _), ids in zip(at, candidates, strict=True):
        pairs = list(zip(ids, text.ids[index : index + len(ids)], strict=False))
        drafted += len(ids)
        accepted += next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return PerfectDrafts(tokens, len(at), drafted, accepted)


def _positions(texts: Sequence[TokenizedText], tokens: int, most: int) -> list[tuple[TokenizedText, int, int]]:
    """Return (text, index of the next token, its first byte), far enough from the end for a whole draft.

    Excludes positions inside a character, where a drafter has to wait.
    """
    every = [(text, index) for text in texts for index in range(1, len(text.ids) - 3 * tokens)]
    found = [(text, index, text.ends[index - 1]) for text, index in every[:: max(1, -(-len(every) // most))]]
    return [(text, index, start) for text, index, start in found if text.data[start] & 0xC0 != 0x80]
