"""Spelling bytes with one vocabulary's ids, and proving by the tokens' own bytes that they are spelled.

Knows the encoder, the table of token bytes, and what an encoder would read as something else than text.
Knows nothing of special tokens' roles, prompts or files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

from codespec.errors import TokenizerError
from codespec.text.token_bytes import single_byte_ids
from codespec.text.tokenizer_json import TokenizerFacts

_NOT_UTF8 = "[\udc80-\udcff]+"  # how `surrogateescape` shows bytes that are no UTF-8
_FEW = 8  # short texts are encoded sooner than the encoder's other threads have woken (lab/LOG.md)
_SHORT = 256  # characters


class Speller:
    """Encodes bytes as they stand inside a longer text: no dummy prefix, no special token, no change."""

    def __init__(self, backend: Tokenizer, token_bytes: Sequence[bytes], trouble: re.Pattern[str]) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        self._byte_ids = single_byte_ids(token_bytes)
        self._trouble = trouble

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Ids by piece. Where something cannot be spelled, the ids end before it."""
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
        except BaseException as error:  # the wheel panics where an expression is given up, which is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise TokenizerError("the tokenizer fails on this text: leave it out, or use another model") from error

    def _plan(self, text: str, batch: list[str]) -> list[int | bytes]:
        """A text as places in `batch`, which is encoded, and as bytes to spell one by one.

        Single bytes spell what is no UTF-8, and the character that stands for a space in token strings. A
        longer string that the vocabulary holds as a control or byte piece is cut after its first character.
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
                if byte not in self._byte_ids:
                    return ids
                ids.append(self._byte_ids[byte])
        return ids

    def _matching(self, ids: list[int], expected: bytes) -> list[int]:
        """The leading ids whose bytes are a prefix of `expected`; an id without bytes ends them."""
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
    """What must not reach the encoder whole, as one capturing pattern.

    Bytes that are no UTF-8; the space marker; and in a Unigram vocabulary, whose pieces are matched
    literally, every control token and byte piece.
    """
    strings = {facts.marker} - {""}
    if facts.kind == "unigram":
        strings |= {name for name in control_names if len(name) > 1}
        strings |= {f"<0x{byte:02X}>" for byte in range(256)} if facts.byte_fallback else set()
    return any_of(strings, or_else=_NOT_UTF8)


def any_of(strings: Collection[str], *, or_else: str = "") -> re.Pattern[str]:
    """A capturing pattern of literal strings, longest first, then of the pattern `or_else`."""
    choices = [re.escape(string) for string in sorted(strings, key=lambda string: (-len(string), string))]
    return re.compile("(" + "|".join([*choices, or_else] if or_else else choices) + ")")
