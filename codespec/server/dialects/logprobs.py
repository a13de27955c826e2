"""Format log-probabilities for clients: tokens as text, in the shapes of OpenAI's two endpoints and of llama.cpp."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from codespec.contract.types import TokenLogprob
from codespec.text.tokenizer import TextTokenizer

LEAST = -9999.0  # JSON has no infinity

Placed = tuple[TokenLogprob, int]  # a token and its first character in the text


class TokenNames:
    """The tokens of a vocabulary as text."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes
        self._controls = {number: name for name, number in tokenizer.vocab.items() if number in tokenizer.special_ids}

    def text(self, token: int) -> str:
        """Return a token's text, a control token's name, or OpenAI's notation for bytes that are not valid UTF-8."""
        spelled = self.bytes(token)
        try:
            return self._controls.get(token) or spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def bytes(self, token: int) -> bytes:
        """Return a token's bytes; b"" for control tokens."""
        return self.token_bytes[token]


class TokenPlacer:
    """The tokens of one choice with their character offsets, consumed as their text is sent.

    Tokens may be added in batches of any size, and repeatedly: a computation that restarts repeats them.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._placed: list[Placed] = []
        self._length = 0  # characters in the text of all tokens so far
        self._taken = 0

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Add the next tokens. Skip known ones, and those after a gap until it is filled."""
        for one in logprobs:
            if one.place == len(self._placed):
                self._placed.append((one, self._length))
                self._length += len(self._decoder.decode(self._names.bytes(one.id)))

    def take(self, length: int) -> list[Placed]:
        """Return the remaining tokens that begin in the first `length` characters, with their offsets; consume them."""
        found = []
        for placed in self._placed[self._taken :]:
            if placed[1] >= length:
                break
            found.append(placed)
        self._taken += len(found)
        return found


def legacy(names: TokenNames, placed: Sequence[Placed]) -> dict[str, Any]:
    """Return the shape of /v1/completions."""
    return {
        "tokens": [names.text(one.id) for one, _ in placed],
        "token_logprobs": [_finite(one.logprob) for one, _ in placed],
        "top_logprobs": [_legacy_top(names, one) for one, _ in placed],
        "text_offset": [start for _, start in placed],
    }


def _legacy_top(names: TokenNames, one: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the token itself; for ids with the same text, the likeliest."""
    found: dict[str, float] = {}
    for number, value in (*one.top, (one.id, one.logprob)):
        found.setdefault(names.text(number), _finite(value))
    return found


def chat(names: TokenNames, placed: Sequence[Placed]) -> dict[str, Any]:
    """Return the shape of /v1/chat/completions."""
    return {"content": [_entry(names, one) for one, _ in placed], "refusal": None}


def llama(names: TokenNames, placed: Sequence[Placed]) -> list[dict[str, Any]]:
    """Return the shape of llama.cpp's /completion."""
    return [{"id": one.id, **_entry(names, one)} for one, _ in placed]


def _entry(names: TokenNames, one: TokenLogprob) -> dict[str, Any]:
    return {**_token(names, one.id, one.logprob), "top_logprobs": [_token(names, *pair) for pair in one.top]}


def _token(names: TokenNames, number: int, value: float) -> dict[str, Any]:
    return {"token": names.text(number), "logprob": _finite(value), "bytes": list(names.bytes(number))}


def _finite(value: float) -> float:
    return max(value, LEAST)
