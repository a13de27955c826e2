"""Rules that the daemon shares with its clients: limits of a request, valid hosts, and edits that are not shown.

The length limits of texts are in characters, so a client that counts bytes instead never exceeds them.
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
MAX_SNIPPETS = 64  # other files in one request
MAX_FILES, MAX_FILE_TEXT = 64, 512 * 1024  # lookup files per document, and their texts together
MAX_CHANGES, MAX_PROBLEMS = 16, 64  # of a request for edits
MAX_CHANGE = 16 * 1024  # text of a change
MAX_CHOICES = 16  # texts per prompt
MAX_LOGPROBS = 20  # most likely tokens at each position
MAX_COUNT = (1 << 31) - 1  # any other count, and the version of a document
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # pattern of a model's name, and of an owner's on the hub
HUB_ID = re.compile(f"{MODEL_NAME}/{MODEL_NAME}")
MAX_SEED = (1 << 63) - 1
NEAR_ROWS = 3  # maximum distance of a revert from the change
Lines = Sequence[str]
_HOST = re.compile(r"[^\x00-\x20\x7f/:@\[\]?#]{1,253}")


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """The description and the range of a value, used to annotate a field."""

    help: str
    _: KW_ONLY
    choices: tuple[str, ...] = ()  # the allowed values; (): any
    least: float | None = None  # the smallest allowed number
    most: float | None = None  # the largest allowed number, or the maximum length of a text or list

    @property
    def bounds(self) -> tuple[float, float]:
        return -math.inf if self.least is None else self.least, math.inf if self.most is None else self.most

    def allows(self, value: str | float) -> bool:
        """Return whether a value is one of the choices, or a number or length within the bounds."""
        if self.choices:
            return value in self.choices
        least, most = self.bounds
        return least <= (len(value) if isinstance(value, str) else value) <= most

    @property
    def range(self) -> str:
        """The allowed values, as the end of the sentence "must be …"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return f"at most {self.most} characters long" if self.least is None else f"between {self.least} and {self.most}"


def declared_range(hint: Any) -> ValueSpec | None:
    """Return the ValueSpec in an annotation, even inside an optional type, or None."""
    nested = (declared_range(item) for item in (*getattr(hint, "__metadata__", ()), *get_args(hint)))
    return hint if isinstance(hint, ValueSpec) else next(filter(None, nested), None)


def is_host(host: str) -> bool:
    """Return whether a text can be an IP address or a host name, without brackets or a port."""
    with suppress(ValueError):
        return bool(ip_address(host))
    if not _HOST.fullmatch(host):
        return False
    with suppress(UnicodeError):  # a label of the name is empty or too long
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
    """Return whether two texts differ only in blank lines and white space at line endings."""
    return [line.rstrip() for line in old if line.strip()] == [line.rstrip() for line in new if line.strip()]


def is_revert(start_row: int, old: Lines, new: Lines, states: Iterable[tuple[int, Lines, Lines]]) -> bool:
    """Return whether an edit, which replaces the `old` lines from `start_row` on, restores text that the user changed.

    Each of the `states` is a change by the user: the first row, the current lines and the earlier lines. A revert
    restores all earlier lines of a change, or only replaces current lines of a change with earlier lines.
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
