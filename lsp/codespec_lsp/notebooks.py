"""Track the order of notebook cells, and collect the code of the cells above one as its context.

A cell is a separate document whose file is the notebook. Text cells and magics, which other programs interpret, are not
code. All URIs are canonical.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from codespec.contract.limits import MOST_SIDE
from codespec_lsp.buffer import Buffer
from codespec_lsp.documents import Document, Documents
from codespec_lsp.uris import notebook_of

TEXT = "markdown"  # the language of text cells
WITH_MAGICS = "python"  # the language whose cells may contain magics
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!(?:capture|prun|time|timeit)\b)")  # a cell magic, except those for Python code
_MAGIC = re.compile(r"^[ \t]*[%!].*\n?", re.MULTILINE)


@dataclass(slots=True)
class Notebook:
    """One notebook with its cells from top to bottom.

    `one_by_one`: the client doesn't support notebook messages and opens each cell separately.
    """

    uri: str
    cells: list[str] = field(default_factory=list)
    one_by_one: bool = False


class Notebooks:
    """The open notebooks of one client."""

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
        for cell in notebook.cells[start : start + count]:
            self._of.pop(cell, None)
        notebook.cells[start : start + count] = cells
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
