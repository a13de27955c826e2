"""Parse untrusted JSON, from a file or the network, with limits on nesting depth and number of values.

The limits are checked before parsing. A recursive parser fails at a depth that depends on the interpreter and the call
stack, and code that walks the values afterwards fails at a smaller depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from codespec.regular_file import read_regular

MAX_DEPTH = 64  # nested brackets; messages, models and state files need less than a quarter of it
MAX_VALUES = 1 << 23  # per file; a vocabulary of 500,000 tokens with its merges has three million
MAX_BYTES = 128 << 20  # per file; the largest vocabularies take 40 MiB
BLOCK = 1 << 20  # bytes scanned at a time
_SEPARATORS = (b",", b"[", b"{")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS)


class TooLarge(ValueError):
    """Raised if JSON exceeds the limit on nesting depth or number of values."""


def parse_json(data: bytes | bytearray, max_values: int = MAX_VALUES, *, finite: bool = False) -> Any:
    """Parse UTF-8 JSON. With `finite`, reject NaN and Infinity.

    Raises TooLarge if a limit is exceeded and ValueError if the data is not valid JSON.
    """
    _demand_bounds(data, max_values)
    refuse: Callable[[str], Any] | None = _refuse_constant if finite else None
    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def read_json_file(file: Path, *, finite: bool = False) -> Any:
    """Parse a regular file with `parse_json`. Also raises OSError."""
    return parse_json(read_regular(file, MAX_BYTES), finite=finite)


def _demand_bounds(data: bytes | bytearray, max_values: int) -> None:
    """Raise TooLarge if the data nests too deeply or holds too many values.

    Every value except the outermost follows a comma or an opening bracket, so these are counted. Strings (source text)
    contain many of both. If the raw count is too high, the count is repeated without strings.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened <= MAX_DEPTH and opened + data.count(b",") <= max_values:
        return
    values = depth = 0
    for outside in _outside_quotes(data):
        values += sum(outside.count(mark) for mark in _SEPARATORS)
        if values > max_values:
            raise TooLarge(f"it holds more than {max_values} commas and brackets")
        steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
        for reached in accumulate(steps, initial=depth):
            if reached > MAX_DEPTH:
                raise TooLarge(f"it nests more than {MAX_DEPTH} brackets deep")
        depth = reached


def _outside_quotes(data: bytes | bytearray) -> Iterator[bytes]:
    """Yield the bytes outside strings, one block at a time.

    Splitting the whole file at once would take many times its size in memory.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote delimits a string
    inside = 0
    for start in range(0, len(data), BLOCK):
        pieces = data[start : start + BLOCK].split(b'"')
        yield b" ".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
