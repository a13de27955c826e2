"""The open documents of one client: URI, path, version, text and recently edited rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from codespec_grammars import find_language

from codespec_lsp.buffer import Buffer, Edit
from codespec_lsp.uris import path_of

NEAR = 12  # rows: edits closer than this count as one
MOST_EDITED_ROWS = 4
_revisions = itertools.count(1)


@dataclass(eq=False, slots=True)
class Document:
    """An open document.

    `uri` is canonical, `spelled` is its last spelling by the client, and `file` is the URI of its file, which for a
    cell is the notebook. `version` is the client's and can be any number; `revision` is ours and unique to each text.
    `changed` is the clock's time of the last change, `edited_rows` the recently edited rows, the latest first.
    `language` is a grammar's name. `lost` is set while the text is unknown.
    """

    uri: str
    language_id: str
    version: int | None
    buffer: Buffer
    changed: float = 0.0
    edited_rows: list[int] = field(default_factory=list)
    spelled: str = ""
    file: str = ""
    revision: int = field(default_factory=lambda: next(_revisions))
    lost: bool = False

    def __post_init__(self) -> None:
        self.file = self.file or self.uri

    @property
    def is_cell(self) -> bool:
        """Whether the document is a notebook cell."""
        return self.file != self.uri

    @property
    def path(self) -> str:
        """The path of the document's file, or the document's name if it has no file."""
        return path_of(self.file)

    @property
    def language(self) -> str:
        """The name of the document's grammar, or ""."""
        return find_language(self.language_id, self.path)

    def lose(self) -> None:
        """Mark the text as unknown until the client sends the whole text."""
        self.lost, self.revision = True, next(_revisions)

    def edited(self, edit: Edit) -> None:
        """Record the row of an edit and shift the recorded rows below it."""
        self.revision = next(_revisions)
        grown = edit.text.count("\n") - edit.removed.count("\n")
        moved = [row + grown if row > edit.row else row for row in self.edited_rows]
        kept = [row for row in moved if abs(row - edit.row) > NEAR]
        self.edited_rows = [edit.row, *kept][:MOST_EDITED_ROWS]


class Documents:
    """All open documents, the most recently used one at the end."""

    def __init__(self) -> None:
        self._open: dict[str, Document] = {}

    def __iter__(self) -> Iterator[Document]:
        return iter(self._open.values())

    def get(self, uri: str) -> Document | None:
        """Return the open document with a URI, or None."""
        return self._open.get(uri)

    @property
    def last(self) -> Document | None:
        """The most recently used document, or None."""
        return next(reversed(self._open.values()), None)

    def open(self, document: Document) -> None:
        """Add a document, replacing one with the same URI."""
        self._open.pop(document.uri, None)
        self._open[document.uri] = document

    def close(self, uri: str) -> Document | None:
        """Remove a document and return it, or None."""
        return self._open.pop(uri, None)

    def used(self, document: Document) -> None:
        """Move a document to the end."""
        if self._open.get(document.uri) is document:
            del self._open[document.uri]
            self._open[document.uri] = document
