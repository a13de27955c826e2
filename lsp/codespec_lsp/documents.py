"""The open documents of one client: URI, path, version, text, and where the text was edited lately."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from codespec_grammars import find_language

from codespec_lsp.buffer import Buffer, Edit

NEAR = 12  # rows: edits closer than this count as one
MOST_EDITED_ROWS = 4


@dataclass(eq=False, slots=True)
class Document:
    """An open document. `changed` is the clock's time of its last change, `edited_rows` were edited lately, the latest
    first; `language` is a grammar's name."""

    uri: str
    language_id: str
    version: int
    buffer: Buffer
    changed: float = 0.0
    edited_rows: list[int] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Its path, or its name where it has none."""
        return path_of(self.uri)

    @property
    def language(self) -> str:
        """The grammar's name; "" for none."""
        return find_language(self.language_id, self.path)

    def edited(self, edit: Edit) -> None:
        """Remembers where an edit was made, and moves the rows below it."""
        grown = edit.text.count("\n") - edit.removed.count("\n")
        moved = [row + grown if row > edit.row else row for row in self.edited_rows]
        kept = [row for row in moved if abs(row - edit.row) > NEAR]
        self.edited_rows = [edit.row, *kept][:MOST_EDITED_ROWS]


class Documents:
    """All open documents, the one that was used last at the end."""

    def __init__(self) -> None:
        self._open: dict[str, Document] = {}

    def __iter__(self) -> Iterator[Document]:
        return iter(self._open.values())

    def get(self, uri: str) -> Document | None:
        """The open document of a URI."""
        return self._open.get(uri)

    @property
    def last(self) -> Document | None:
        """The document that was used last."""
        return next(reversed(self._open.values()), None)

    def open(self, document: Document) -> None:
        """Takes a document; one opened again replaces itself."""
        self._open.pop(document.uri, None)
        self._open[document.uri] = document

    def close(self, uri: str) -> Document | None:
        """Forgets a document."""
        return self._open.pop(uri, None)

    def used(self, document: Document) -> None:
        """Puts a document at the end."""
        if self._open.get(document.uri) is document:
            del self._open[document.uri]
            self._open[document.uri] = document


_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)", re.DOTALL)
_DRIVE = re.compile(r"/([A-Za-z]:)(?=/|\Z)")


class Parts(NamedTuple):
    """A URI's scheme in lower case, its host and its path, the latter two as they are meant."""

    scheme: str
    host: str
    path: str


def split_uri(uri: str) -> Parts:
    """The parts of whatever a client calls a document."""
    scheme, host, path = _PARTS.match(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    return Parts(scheme.lower(), unquote(host), unquote(path))


def path_of(uri: str, windows: bool = sys.platform == "win32") -> str:
    """The path of a file: URI as its system spells it; for others the part after the scheme, which is a name to look at
    only."""
    scheme, host, path = split_uri(uri)
    if scheme != "file" or not windows:
        return path
    if host and host != "localhost":
        return f"//{host}{path}".replace("/", "\\")
    drive = _DRIVE.match(path)
    return (path[1:] if drive else path).replace("/", "\\")
