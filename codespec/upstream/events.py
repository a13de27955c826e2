"""Split a server's body into server-sent events, with bounds on everything that the server sends."""

from __future__ import annotations

import codecs
from typing import Any

from codespec.bounded_json import parse_json

MOST_LINE = 1 << 18  # bytes of a line, and of one event
MOST_VALUES = 1 << 14  # JSON values in one event


class NotEvents(Exception):
    """Raised for bytes that are no events, or exceed a limit; its text is a clause about the server."""


class Events:
    """The events of one body, by the HTML standard's rules; names, comments and empty data have no use here."""

    def __init__(self) -> None:
        self.whole: list[bytes] = []  # data of complete events
        self._held = bytearray()
        self._data: list[bytes] = []
        self._begins = True

    @property
    def is_half(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._held or self._data)

    def feed(self, piece: bytes) -> None:
        """Append bytes. Raises NotEvents if a line or an event is too long."""
        self._held += piece
        if b"\n" in piece:
            *lines, self._held = self._held.split(b"\n")
            for line in lines:
                self._add(bytes(line.removesuffix(b"\r")))
        if len(self._held) + sum(map(len, self._data)) > MOST_LINE:
            raise NotEvents(f"sent an event longer than {MOST_LINE >> 10} KiB")

    def _add(self, line: bytes) -> None:
        if self._begins:
            self._begins, line = False, line.removeprefix(codecs.BOM_UTF8)
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            if any(self._data):  # proxies keep a connection open with empty ones
                self.whole.append(b"\n".join(self._data))
            self._data = []


def read_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises NotEvents for anything else."""
    try:
        value = parse_json(data, MOST_VALUES)
    except UnicodeDecodeError as error:
        raise NotEvents("sent text that is not UTF-8") from error
    except ValueError as error:
        raise NotEvents("sent invalid JSON") from error
    if not isinstance(value, dict):
        raise NotEvents("sent JSON that is no object")
    return value
