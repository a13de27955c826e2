"""The notebooks of one client: their cells from top to bottom, and which parts of them are code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codespec.api.limits import MAX_SIDE
from codespec_lsp.buffer import Buffer
from codespec_lsp.documents import Document, Documents, canonical, notebook_of

TEXTS = ("markdown", "raw")  # the languages of text cells
WITH_MAGICS = "python"  # the language whose cells may contain magics
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!(?:capture|prun|time|timeit)\b)")  # a cell magic, except those for Python code
# A line magic, a shell command, a question about a name, or the output of one of these as a value. A line that
# continues an expression with `% b` is Python.
_MAGIC = re.compile(
    r"^[ \t]*(?:%{1,2}[A-Za-z_]|!|\?{1,2}[A-Za-z_]|[\w.]+\?{1,2}[ \t]*$|[\w.]+[ \t]*=[ \t]*(?:%[A-Za-z_]|!)).*\n?",
    re.MULTILINE,
)


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
        self._texts: set[str] = set()  # cells that the client calls text, whatever their language

    def open(self, uri: str, cells: Sequence[str], texts: Collection[str] = ()) -> None:
        """Add an opened notebook. `texts` are the cells that the client calls text."""
        self.close(uri)
        self._open[uri] = Notebook(uri)
        self.splice(uri, 0, 0, cells, texts)

    def splice(self, uri: str, start: int, count: int, cells: Sequence[str], texts: Collection[str] = ()) -> None:
        """Replace `count` cells from `start` on. `texts` are those of the new ones that the client calls text."""
        notebook = self._open.get(uri)
        if notebook is None:
            return
        self._texts.difference_update(cells)
        self._texts.update(texts)
        removed = notebook.cells[start : start + count]
        notebook.cells[start : start + count] = cells
        for cell in set(removed).difference(notebook.cells):  # a client may insert a moved cell before it removes it
            self._drop(cell)
        self._of |= dict.fromkeys(cells, notebook)

    def close(self, uri: str) -> list[str]:
        """Remove a closed notebook and return its cells, without those that are in another one by now."""
        notebook = self._open.pop(uri, None) or Notebook(uri)
        own = [cell for cell in dict.fromkeys(notebook.cells) if self._of.get(cell) is notebook]
        for cell in own:
            self._drop(cell)
        return own

    def settle(self, cells: Sequence[Mapping[str, Any]], documents: Documents) -> list[Document]:
        """Give cells that were opened before their notebook named them its file, and return them."""
        late = [(documents.get(uri), self._of[uri].uri) for uri in listed(cells)[0] if uri in self._of]
        changed = [(document, file) for document, file in late if document is not None and document.file != file]
        for document, file in changed:
            document.file = file
        return [document for document, _ in changed]

    def is_text(self, document: Document) -> bool:
        """Return whether a document is a text cell: by its language, or because the client calls it one."""
        return document.is_cell and (document.language_id.lower() in TEXTS or document.uri in self._texts)

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
            same = cell is not None and cell.language_id.lower() == document.language_id.lower()
            if cell is not None and same and not cell.lost and not self.is_text(cell):
                pieces.append(code_of(cell.language_id, cell.buffer.text))
                if sum(map(len, pieces)) > MAX_SIDE:
                    break
        return "".join(reversed(pieces))

    def _drop(self, cell: str) -> None:
        self._of.pop(cell, None)
        self._texts.discard(cell)


def code_of(language: str, text: str) -> str:
    """Return a cell's text without magics, ending with a line break."""
    if language.lower() == WITH_MAGICS:
        text = "" if _OTHER_LANGUAGE.match(text) else _MAGIC.sub("", text)
    return text if text.endswith("\n") or not text else text + "\n"


def is_magic(language: str, buffer: Buffer, row: int) -> bool:
    """Return whether a row of a cell is a magic, or part of a cell whose magic passes it to another program."""
    if language.lower() != WITH_MAGICS:
        return False
    return bool(_OTHER_LANGUAGE.match(buffer.text) or _MAGIC.match(buffer.lines[row]))


def listed(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the canonical URIs of notebook cells, and of those that the client calls text."""
    named = [(canonical(cell["document"]), cell.get("kind") == 1) for cell in cells]
    return [uri for uri, _ in named], [uri for uri, is_text in named if is_text]
