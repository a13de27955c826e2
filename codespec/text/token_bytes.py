"""Compute the bytes that each token id spells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from codespec.text.tokenizer_json import Document, TokenizerFacts

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Bytes that never occur in UTF-8: overlong lead bytes and lead bytes beyond U+10FFFF.
_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


def byte_level_alphabet() -> dict[int, int]:
    """Return GPT-2's byte alphabet: code point in a token string → byte.

    Printable Latin-1 maps to itself; the other 68 bytes take the code points from 256 on, in order.
    """
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(itself)]
    return {**{byte: byte for byte in itself}, **{256 + place: byte for place, byte in enumerate(moved)}}


def token_bytes_table(
    vocabulary: Mapping[str, int], document: Document, facts: TokenizerFacts, control: frozenset[int]
) -> list[bytes]:
    """Return the bytes by id, up to the largest id; b"" for control tokens and unused ids."""
    added = {token["content"] for token in document.get("added_tokens") or ()}
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    alphabet = byte_level_alphabet()
    for token, number in vocabulary.items():
        if number in control:
            continue
        if facts.kind == "byte-level" and token not in added:
            table[number] = _byte_level_bytes(token, alphabet)
        else:
            table[number] = _piece_bytes(token, facts)
    return table


def single_byte_ids(table: Sequence[bytes]) -> dict[int, int]:
    """Return, by byte, the lowest id that spells that byte alone."""
    return {table[number][0]: number for number in reversed(range(len(table))) if len(table[number]) == 1}


def missing_bytes(table: Sequence[bytes]) -> list[int]:
    """Return the bytes that occur in UTF-8 text but have no single-byte token."""
    single = single_byte_ids(table)
    return [byte for byte in range(256) if byte not in single and byte not in _NEVER_IN_UTF8]


def _byte_level_bytes(token: str, alphabet: Mapping[int, int]) -> bytes:
    try:
        return token.translate(alphabet).encode("latin-1")
    except UnicodeEncodeError:  # outside the alphabet: decoders treat the whole token as plain text
        return token.encode("utf-8")


def _piece_bytes(token: str, facts: TokenizerFacts) -> bytes:
    match = _BYTE_PIECE.fullmatch(token) if facts.byte_fallback else None
    if match:
        return bytes([int(match[1], 16)])
    return (token.replace(facts.marker, " ") if facts.marker else token).encode("utf-8")
