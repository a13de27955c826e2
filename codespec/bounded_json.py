"""JSON that somebody else wrote, in a file or over the network: how deep it nests and how many values it holds is known
before a parser makes anything of it.

Knows JSON's brackets and quotes; does not know what the values are for. A parser that follows brackets by recursion
ends at some depth that depends on the interpreter and on its caller, and what walks the values afterwards ends earlier.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from codespec.regular_file import read_regular

MOST_DEPTH = 64  # brackets within one another: no message, model or state needs a quarter of it
MOST_VALUES = 1 << 23  # of a file: a vocabulary of half a million tokens with its merges has three million
MOST_BYTES = 128 << 20  # of a file: the largest vocabularies take 40 MiB
BLOCK = 1 << 20  # bytes that are looked at together
_SEPARATORS = (b",", b"[", b"{")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS)


class TooLarge(ValueError):
    """It nests deeper, or holds more values, than anything that is read here needs to."""


def parse_json(data: bytes | bytearray, most_values: int = MOST_VALUES, *, finite: bool = False) -> Any:
    """The value that UTF-8 text spells; `finite` refuses NaN and Infinity, which are no JSON. Raises TooLarge, and
    ValueError for what is no JSON.
    """
    _demand_bounds(data, most_values)
    refuse: Callable[[str], Any] | None = _refuse_constant if finite else None
    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def read_json_file(file: Path, *, finite: bool = False) -> Any:
    """The same of a regular file. Raises OSError too."""
    return parse_json(read_regular(file, MOST_BYTES), finite=finite)


def _demand_bounds(data: bytes | bytearray, most_values: int) -> None:
    """Each value but the outermost stands behind a comma or an opening bracket. Source text has many of its own, so
    what is inside quotes is left out where they seem to be too many.
    """
    opened = data.count(b"[") + data.count(b"{")
    if opened <= MOST_DEPTH and opened + data.count(b",") <= most_values:
        return
    values = depth = 0
    for outside in _outside_quotes(data):
        values += sum(outside.count(mark) for mark in _SEPARATORS)
        if values > most_values:
            raise TooLarge(f"it holds more than {most_values} commas and brackets")
        steps = map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKET))
        for reached in accumulate(steps, initial=depth):
            if reached > MOST_DEPTH:
                raise TooLarge(f"it nests more than {MOST_DEPTH} brackets deep")
        depth = reached


def _outside_quotes(data: bytes | bytearray) -> Iterator[bytes]:
    """What stands between the texts, a block at a time: the pieces of a whole file would take many times its size."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left opens a text or ends it
    inside = 0
    for start in range(0, len(data), BLOCK):
        pieces = data[start : start + BLOCK].split(b'"')
        yield b" ".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
