"""Log-probabilities as clients read them: tokens as text, in the forms of OpenAI's two endpoints and of llama.cpp.

Knows one vocabulary's spellings and which tokens belong to a text that was told; knows no engine.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from codespec.text.tokenizer import TextTokenizer
from codespec.types import TokenLogprob

LEAST = -9999.0  # JSON has no infinity

Placed = tuple[TokenLogprob, int]


class Spelling:
    """What the ids of a vocabulary are called."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes
        self._controls = {number: name for name, number in tokenizer.vocab.items() if number in tokenizer.special_ids}

    def text(self, token: int) -> str:
        """A token's text; a control token's name; the bytes of what is no text by itself, in OpenAI's way."""
        spelled = self.bytes(token)
        try:
            return self._controls.get(token) or spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def bytes(self, token: int) -> bytes:
        """What it spells; b"" for control tokens."""
        return self.token_bytes[token]


class Shown:
    """The tokens of one choice and where they begin, handed out as the text that they spell is told.

    Takes tokens in any batches, known ones again too (a computation that was begun anew tells them twice).
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._placed: list[Placed] = []
        self._length = 0  # characters that all tokens so far spell
        self._handed = 0

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Takes the next tokens; what is known, and what comes behind a gap, is left for later."""
        for told in logprobs:
            if told.place == len(self._placed):
                self._placed.append((told, self._length))
                self._length += len(self._decoder.decode(self._spelling.bytes(told.id)))

    def hand_out(self, length: int) -> list[Placed]:
        """The tokens not handed out yet that begin in the first `length` characters, each with its first character."""
        found = []
        for placed in self._placed[self._handed :]:
            if placed[1] >= length:
                break
            found.append(placed)
        self._handed += len(found)
        return found


def legacy(spelling: Spelling, placed: Sequence[Placed]) -> dict[str, Any]:
    """For /v1/completions."""
    return {
        "tokens": [spelling.text(told.id) for told, _ in placed],
        "token_logprobs": [_finite(told.logprob) for told, _ in placed],
        "top_logprobs": [_legacy_top(spelling, told) for told, _ in placed],
        "text_offset": [start for _, start in placed],
    }


def _legacy_top(spelling: Spelling, told: TokenLogprob) -> dict[str, float]:
    """The likeliest, and the token itself if it is not one of them; of ids that are spelled alike the best."""
    found: dict[str, float] = {}
    for number, value in (*told.top, (told.id, told.logprob)):
        found.setdefault(spelling.text(number), _finite(value))
    return found


def chat(spelling: Spelling, placed: Sequence[Placed]) -> dict[str, Any]:
    """For /v1/chat/completions."""
    return {"content": [_entry(spelling, told) for told, _ in placed], "refusal": None}


def llama(spelling: Spelling, placed: Sequence[Placed]) -> list[dict[str, Any]]:
    """For llama.cpp's /completion."""
    return [{"id": told.id, **_entry(spelling, told)} for told, _ in placed]


def _entry(spelling: Spelling, told: TokenLogprob) -> dict[str, Any]:
    return {**_token(spelling, told.id, told.logprob), "top_logprobs": [_token(spelling, *pair) for pair in told.top]}


def _token(spelling: Spelling, number: int, value: float) -> dict[str, Any]:
    return {"token": spelling.text(number), "logprob": _finite(value), "bytes": list(spelling.bytes(number))}


def _finite(value: float) -> float:
    return max(value, LEAST)
