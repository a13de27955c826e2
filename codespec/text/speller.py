"""The bytes that each id of a vocabulary spells, and how to spell bytes with its ids.

Verifies each spelling against the tokens' own bytes, and handles strings that the encoder would not treat as plain
text. Independent of prompts, files and the roles of special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise

from tokenizers import Tokenizer

from codespec.errors import TokenizerError
from codespec.text.tokenizer_json import Document, TokenizerFacts

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    pieces = set(vocabulary)
    if facts.kind == "byte-level":
        pieces &= {token["content"] for token in document.get("added_tokens") or ()}
        plain = {token: number for token, number in vocabulary.items() if token not in pieces}
        for number, data in zip(plain.values(), _byte_level_bytes(list(plain)), strict=True):
            table[number] = data
    for token in pieces:
        table[vocabulary[token]] = _piece_bytes(token, facts)
    for number in control:
        table[number] = b""
    return table


def _byte_level_bytes(tokens: Sequence[str]) -> list[bytes]:
    """Return the bytes of tokens in the byte alphabet. All are translated at once, since one by one takes longer."""
    alphabet = byte_level_alphabet()
    try:
        data = "".join(tokens).translate(alphabet).encode("latin-1")  # a byte a character
    except UnicodeEncodeError:
        if len(tokens) == 1:  # outside the alphabet: decoders treat the whole token as plain text
            return [tokens[0].encode("utf-8")]
        half = len(tokens) // 2
        return _byte_level_bytes(tokens[:half]) + _byte_level_bytes(tokens[half:])
    ends = list(accumulate(map(len, tokens), initial=0))
    return [data[start:end] for start, end in pairwise(ends)]


def _piece_bytes(token: str, facts: TokenizerFacts) -> bytes:
    match = _BYTE_PIECE.fullmatch(token) if facts.byte_fallback else None
    if match:
        return bytes([int(match[1], 16)])
    return (token.replace(facts.marker, " ") if facts.marker else token).encode("utf-8")


_NOT_UTF8 = "[\udc80-\udcff]+"  # bytes that are not UTF-8, as decoded by `surrogateescape`
_FEW = 8  # short texts are encoded before the encoder's other threads wake up (lab/LOG.md)
_SHORT = 256  # characters


class Speller:
    """Encoder of bytes from inside a longer text: no dummy prefix, no special token, the same bytes.

    byte_ids   the lowest id that spells a byte alone, by byte
    """

    def __init__(self, backend: Tokenizer, token_bytes: Sequence[bytes], trouble: re.Pattern[str]) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        single = [number for number, length in enumerate(map(len, token_bytes)) if length == 1]
        self.byte_ids = {token_bytes[number][0]: number for number in reversed(single)}
        self._trouble = trouble

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Return the ids of each piece; if something cannot be spelled, the ids end before it."""
        batch: list[str] = []
        plans = [self._plan(piece.decode("utf-8", "surrogateescape"), batch) for piece in pieces]
        encoded = self._encode(batch)
        return [self._matching(self._assemble(plan, encoded), piece) for plan, piece in zip(plans, pieces, strict=True)]

    def _encode(self, batch: list[str]) -> list[list[int]]:
        few = len(batch) <= _FEW and all(len(text) <= _SHORT for text in batch)
        calls = [[text] for text in batch] if few else [batch]
        encode = self._backend.encode_batch_fast
        try:
            return [item.ids for call in calls for item in encode(call, add_special_tokens=False)]
        except BaseException as error:  # if a regex gives up, the wheel panics: that is not an Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise TokenizerError("the tokenizer fails on this text", "leave it out, or use another model") from error

    def _plan(self, text: str, batch: list[str]) -> list[int | bytes]:
        """Split a text into indices of `batch` entries to encode, and bytes to spell one by one.

        Single bytes spell whatever is not UTF-8, and the character that stands for a space in token strings. A longer
        string that the vocabulary contains as a control or byte piece is split after its first character.
        """
        if not self._trouble.search(text):
            batch.append(text)
            return [len(batch) - 1]
        plan: list[int | bytes] = []
        for place, piece in enumerate(self._trouble.split(text)):
            if place % 2 and (len(piece) == 1 or "\udc80" <= piece[0] <= "\udcff"):
                plan.append(piece.encode("utf-8", "surrogateescape"))
                continue
            for part in (piece[:1], piece[1:]) if place % 2 else (piece,):
                batch.append(part)
                plan.append(len(batch) - 1)
        return plan

    def _assemble(self, plan: Sequence[int | bytes], encoded: Sequence[list[int]]) -> list[int]:
        if len(plan) == 1 and isinstance(plan[0], int):
            return encoded[plan[0]]
        ids: list[int] = []
        for step in plan:
            if isinstance(step, int):
                ids += encoded[step]
                continue
            for byte in step:
                if byte not in self.byte_ids:
                    return ids
                ids.append(self.byte_ids[byte])
        return ids

    def _matching(self, ids: list[int], expected: bytes) -> list[int]:
        """Return the leading ids whose bytes are a prefix of `expected`, up to the first id without bytes."""
        pieces = [self._token_bytes[number] for number in ids]
        if b"".join(pieces) == expected and all(pieces):
            return ids
        end = 0
        for count, piece in enumerate(pieces):
            if not piece or not expected.startswith(piece, end):
                return ids[:count]
            end += len(piece)
        return ids


def trouble_pattern(facts: TokenizerFacts, control_names: Collection[str]) -> re.Pattern[str]:
    """Return a capturing pattern of everything that must not reach the encoder whole.

    That is: bytes that are not UTF-8; the space marker; and in a Unigram vocabulary, which matches pieces literally,
    every control token and byte piece.
    """
    strings = {facts.marker} - {""}
    if facts.kind == "unigram":
        strings |= {name for name in control_names if len(name) > 1}
        strings |= {f"<0x{byte:02X}>" for byte in range(256)} if facts.byte_fallback else set()
    return any_of(strings, or_else=_NOT_UTF8)


def any_of(strings: Collection[str], *, or_else: str = "") -> re.Pattern[str]:
    """Return a capturing pattern of literal strings, longest first, then of the pattern `or_else`."""
    choices = [re.escape(string) for string in sorted(strings, key=lambda string: (-len(string), string))]
    return re.compile("(" + "|".join([*choices, or_else] if or_else else choices) + ")")
