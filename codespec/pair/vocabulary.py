"""How much two vocabularies have in common, counted in bytes and ids. Knows tokenizers; knows no models."""

from __future__ import annotations

from collections.abc import Sequence

from codespec.text.tokenizer import TextTokenizer


def single_token_share(tokenizer: TextTokenizer, other: TextTokenizer) -> float:
    """The share of a vocabulary's ordinary tokens whose bytes are one token of the other."""
    mine = _ordinary(tokenizer.token_bytes)
    spelled = set(_ordinary(other.token_bytes))
    return sum(data in spelled for data in mine) / len(mine) if mine else 0.0


def equal_ids_share(tokenizer: TextTokenizer, other: TextTokenizer) -> float:
    """The share of a vocabulary's ordinary ids that spell the same bytes in the other."""
    mine = tokenizer.token_bytes
    equal = sum(bool(a) and a == b for a, b in zip(mine, other.token_bytes, strict=False))
    return equal / max(1, len(_ordinary(mine)))


def _ordinary(table: Sequence[bytes]) -> list[bytes]:
    return [data for data in table if data]
