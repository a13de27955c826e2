"""The open documents of one client, with what the editor said about each. Knows buffers, versions and where edits were
made; knows no completion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from codespec_grammars import find_language

from codespec_lsp.buffer import Buffer, Edit
from codespec_lsp.uris import path_of

NEAR = 12  # rows: edits closer than this are one place
MOST_PLACES = 4


@dataclass(eq=False, slots=True)
class Document:
    """An open document. `changed` is the clock's time of its last change, `places` are rows edited lately, the latest
    first; `language` is a grammar's name."""

    uri: str
    language_id: str
    version: int
    buffer: Buffer
    changed: float = 0.0
    places: list[int] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Its path, or its name where it has none."""
        return path_of(self.uri)

    @property
    def language(self) -> str:
        """The grammar's name; "" for none."""
        return find_language(self.language_id, self.path)

    def edited(self, edit: Edit) -> None:
        """Remembers where an edit was made, and moves the places below it."""
        grown = edit.text.count("\n") - edit.removed.count("\n")
        moved = [row + grown if row > edit.row else row for row in self.places]
        kept = [row for row in moved if abs(row - edit.row) > NEAR]
        self.places = [edit.row, *kept][:MOST_PLACES]


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
