"""Rules that the daemon and its clients share: limits of a request, hosts of this machine, edits nobody wants to see.

A field of a request is annotated with its `ValueSpec` in `api.body` and `api.types`. Text lengths are in characters, so
a client that counts bytes stays within them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_address
from typing import Any, get_args

MAX_BODY = 8 << 20  # bytes of a request body; each field has its own limit
MAX_SEPARATORS = 1 << 18  # JSON values per body: an empty list takes three bytes there, but seventy in memory
MAX_SIDE = 64 * 1024  # text on each side of a cursor, and of one other file
MAX_TEXT = 1 << 20  # any other text
MAX_PREDICTION = 1 << 18  # text that the completion will probably repeat
MAX_PATH = 4096  # a path, or the name of a document or a model
MAX_NAME = 64  # the name of a language or a trigger
MAX_WORD = 4096  # one text of a list
MAX_STOPS = 64  # stop texts, and any other list of texts
MAX_BRACKETS = 1024  # open brackets at a cursor
MAX_SNIPPETS = 64  # other files in one request
MAX_FILES, MAX_FILE_TEXT = 64, 512 * 1024  # lookup files per document, and their texts together
MAX_DOCUMENT = 2 * MAX_SIDE  # the part of a document in which an edit is looked for
MAX_PLACES, MAX_CHANGES, MAX_CHANGE, MAX_PROBLEMS = 3, 16, 16 * 1024, 64  # of one request for edits; a change's text
MAX_CHOICES = 16  # texts per prompt
MAX_LOGPROBS = 20  # most likely tokens at each position
MAX_COUNT = (1 << 31) - 1  # any other count, and the version of a document
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # pattern of a model's name, and of an owner's on the hub
HUB_ID = re.compile(f"{MODEL_NAME}/{MODEL_NAME}")
MAX_SEED = (1 << 63) - 1
NEAR_ROWS = 3  # a revert may stand this far from the change
Lines = Sequence[str]
_HOST = re.compile(r"[^\x00-\x20\x7f/:@\[\]?#]{1,253}")


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """Description and range of a value.

    choices    the allowed values; (): any
    least      the smallest allowed number; None: no bound
    most       the largest allowed number, or the greatest length of a text or list; None: no bound
    """

    help: str
    _: KW_ONLY
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        return -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most

    def contains(self, value: float) -> bool:
        """Return whether a number is within the bounds; NaN is not."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def allows(self, value: str | float) -> bool:
        """Return whether a value is one of the choices, or within the bounds."""
        if self.choices:
            return value in self.choices
        return self.contains(len(value) if isinstance(value, str) else value)

    @property
    def range(self) -> str:
        """The values that it allows, for a sentence: "must be …"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return f"at most {self.most} characters long" if self.least is None else f"between {self.least} and {self.most}"


def declared_range(hint: Any) -> ValueSpec | None:
    """Return the description in an annotation, also of an optional value; None if there is none."""
    nested = (declared_range(item) for item in (*getattr(hint, "__metadata__", ()), *get_args(hint)))
    return hint if isinstance(hint, ValueSpec) else next(filter(None, nested), None)


def is_host(host: str) -> bool:
    """Return whether a text can be an IP address or a host's name, without brackets or a port."""
    with suppress(ValueError):
        return bool(ip_address(host))
    if not _HOST.fullmatch(host):
        return False
    with suppress(UnicodeError):  # a part between dots has a length that DNS can't carry
        return bool(host.encode("idna"))
    return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def changes_white_space(old: Lines, new: Lines) -> bool:
    """Return whether two texts differ in nothing but blank lines and white space at line ends."""
    return [line.rstrip() for line in old if line.strip()] == [line.rstrip() for line in new if line.strip()]


def is_revert(start_row: int, old: Lines, new: Lines, states: Iterable[tuple[int, Lines, Lines]]) -> bool:
    """Return whether new lines for the `old` ones from `start_row` on bring back what the user changed.

    `states` are earlier texts of changed lines: each with its first row and the lines that are there now. A revert puts
    a whole state, or some of it, in place of what is there now.
    """
    taken, brought = [line for line in old if line.strip()], [line for line in new if line.strip()]
    for row, now, state in states:
        first, last = start_row - row, start_row - row + len(old)
        if first >= 0 and last <= len(now) and [*now[:first], *new, *now[last:]] == list(state):
            return True
        if start_row + len(old) < row - NEAR_ROWS or start_row > row + len(now) + NEAR_ROWS:
            continue
        if all(line in now and line not in state for line in taken) and all(
            line in state and line not in now for line in brought
        ):
            return True
    return False
