"""The open documents of one client: URI, path, version, text, and where the text was edited lately."""

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
    """An open document. `uri` is canonical, `spelled` as the client wrote it last, `file` its file's: a cell's is its
    notebook. `version` is the client's, which may be anything, and `revision` ours: no two texts have the same.
    `changed` is the clock's time of its last change, `edited_rows` were edited lately, the latest first; `language` is
    a grammar's name. A document is `lost` while its text is not known."""

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
        """Whether it is one of a notebook's."""
        return self.file != self.uri

    @property
    def path(self) -> str:
        """Its file's path, or its name where it has none."""
        return path_of(self.file)

    @property
    def language(self) -> str:
        """The grammar's name; "" for none."""
        return find_language(self.language_id, self.path)

    def lose(self) -> None:
        """Its text is not known from here on, until the whole of it comes."""
        self.lost, self.revision = True, next(_revisions)

    def edited(self, edit: Edit) -> None:
        """Remembers where an edit was made, and moves the rows below it."""
        self.revision = next(_revisions)
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
