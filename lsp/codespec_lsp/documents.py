"""The open documents of one client: text, version, edited rows and deleted text; and the notebooks that cells are in.

All URIs are canonical, and offsets are in code points.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from codespec_grammars import find_language

from codespec.contract.limits import MOST_SIDE
from codespec_lsp.buffer import Buffer, Edit
from codespec_lsp.uris import notebook_of, path_of

NEAR = 12  # rows: edits closer than this count as one
MOST_EDITED_ROWS = 4
_revisions = itertools.count(1)
MOST_PLACES = 8
MOST_TEXT = 16_384  # characters of one deletion
MOST_TYPED = 200  # maximum characters between the start of a deletion and the cursor
LEAST = 4  # minimum non-blank characters: shorter text is typed faster than it is drafted
TEXT = "markdown"  # the language of text cells
WITH_MAGICS = "python"  # the language whose cells may contain magics
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!(?:capture|prun|time|timeit)\b)")  # a cell magic, except those for Python code
_MAGIC = re.compile(r"^[ \t]*[%!].*\n?", re.MULTILINE)


@dataclass(slots=True)
class Deletion:
    """Deleted text; `start` is its offset in the current text."""

    start: int
    text: str


class Deletions:
    """The last deletions in one document, the latest first.

    Deleted text is a draft for the text that is typed at the same position again, as in retyping or editing a copy.
    """

    def __init__(self) -> None:
        self._places: list[Deletion] = []

    def edited(self, edit: Edit) -> None:
        """Shift the recorded deletions and add the text that the edit removed. Adjacent deletions are merged."""
        edit = edit.least()
        if edit.removed and self._joins(edit):
            return
        self._move(edit)
        if edit.removed:
            deletion = Deletion(edit.start, edit.removed[:MOST_TEXT])
            self._places = [deletion, *self._places][:MOST_PLACES]

    def find(self, offset: int, before: str, after: str) -> str:
        """Return the deleted text at the cursor, without the part that was retyped, or "".

        The result is "" if the text is there again. `before` and `after` are the text around the cursor, at least
        MOST_TYPED characters on each side.
        """
        found = ""
        for place in self._places:
            typed = offset - place.start
            if not 0 <= typed <= min(MOST_TYPED, len(before)):
                continue
            written = before[len(before) - typed :]
            text = place.text[typed:] if place.text.startswith(written) else place.text
            if len(text) > len(found) and len("".join(text.split())) >= LEAST and not after.startswith(text):
                found = text
        return found

    def _joins(self, edit: Edit) -> bool:
        """Merge text removed right before (backspace) or after (delete) the latest deletion; return whether it was."""
        if edit.text or not self._places:
            return False
        last, end = self._places[0], edit.start + len(edit.removed)
        if end == last.start:
            text = edit.removed + last.text
        elif edit.start == last.start:
            text = last.text + edit.removed
        else:
            return False
        del self._places[0]
        self._move(edit)
        self._places.insert(0, Deletion(edit.start, text[:MOST_TEXT]))
        return True

    def _move(self, edit: Edit) -> None:
        """Shift the deletions after the edit and drop those inside the removed text."""
        end, grown = edit.start + len(edit.removed), len(edit.text) - len(edit.removed)
        self._places = [
            place if place.start <= edit.start else Deletion(place.start + grown, place.text)
            for place in self._places
            if place.start <= edit.start or place.start >= end
        ]


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
    deletions: Deletions = field(default_factory=Deletions)

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
        """Record an edit: its row, shifting the recorded rows below it, and the text that it deleted."""
        self.revision = next(_revisions)
        self.deletions.edited(edit)
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


@dataclass(slots=True)
class Notebook:
    """One notebook with its cells from top to bottom.

    `one_by_one`: the client doesn't support notebook messages and opens each cell separately.
    """

    uri: str
    cells: list[str] = field(default_factory=list)
    one_by_one: bool = False


class Notebooks:
    """The open notebooks of one client.

    A cell is a document whose file is the notebook; the code of the cells above it is its context. Text cells, and
    magics, which other programs interpret, are not code.
    """

    def __init__(self) -> None:
        self._open: dict[str, Notebook] = {}
        self._of: dict[str, Notebook] = {}  # by cell

    def open(self, uri: str, cells: Sequence[str]) -> None:
        """Add an opened notebook."""
        self.close(uri)
        self._open[uri] = Notebook(uri)
        self.splice(uri, 0, 0, cells)

    def splice(self, uri: str, start: int, count: int, cells: Sequence[str]) -> None:
        """Replace `count` cells from `start` on."""
        notebook = self._open.get(uri)
        if notebook is None:
            return
        removed = notebook.cells[start : start + count]
        notebook.cells[start : start + count] = cells
        for cell in set(removed).difference(notebook.cells):  # a client may insert a moved cell before it removes it
            self._of.pop(cell, None)
        self._of |= dict.fromkeys(cells, notebook)

    def close(self, uri: str) -> list[str]:
        """Remove a closed notebook and return its cells."""
        notebook = self._open.pop(uri, None) or Notebook(uri)
        for cell in notebook.cells:
            self._of.pop(cell, None)
        return notebook.cells

    def opened(self, document: str) -> str:
        """Register an opened document and return the URI of its file: for a cell its notebook, else itself."""
        uri = notebook_of(document)
        if document not in self._of and uri:
            notebook = self._open.setdefault(uri, Notebook(uri, one_by_one=True))
            self.splice(uri, len(notebook.cells), 0, [document])
        return self._of[document].uri if document in self._of else document

    def closed(self, document: str) -> None:
        """Handle a closed document. A cell that was opened separately is removed."""
        notebook = self._of.get(document)
        if notebook is not None and notebook.one_by_one:
            self.splice(notebook.uri, notebook.cells.index(document), 1, ())
            if not notebook.cells:
                del self._open[notebook.uri]

    def above(self, document: Document, documents: Documents) -> str:
        """Return the code of the cells above one in the same language, at least as much as a prompt can hold."""
        notebook = self._of.get(document.uri)
        if notebook is None:
            return ""
        pieces: list[str] = []
        for uri in reversed(notebook.cells[: notebook.cells.index(document.uri)]):
            cell = documents.get(uri)
            if cell is not None and not cell.lost and cell.language_id == document.language_id:
                pieces.append(code_of(cell))
                if sum(map(len, pieces)) > MOST_SIDE:
                    break
        return "".join(reversed(pieces))


def code_of(cell: Document) -> str:
    """Return a cell's text without magics, ending with a line break."""
    text = cell.buffer.text
    if cell.language_id == WITH_MAGICS:
        text = "" if _OTHER_LANGUAGE.match(text) else _MAGIC.sub("", text)
    return text if text.endswith("\n") or not text else text + "\n"


def is_magic(language: str, buffer: Buffer, row: int) -> bool:
    """Return whether a row of a cell is a magic, or part of a cell whose magic passes it to another program."""
    if language != WITH_MAGICS:
        return False
    return bool(_OTHER_LANGUAGE.match(buffer.text) or _MAGIC.match(buffer.lines[row]))
