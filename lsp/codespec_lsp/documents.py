"""The open documents of one client under canonical URIs, and their notebooks.

Editors escape different characters of a URI, and some editors escape none. In a file URI, `?` and `#` are part of the
file name: file URIs have no query or fragment in LSP, and a secret file's name cut there could look harmless.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple
from unicodedata import normalize
from urllib.parse import quote, unquote_to_bytes

from codespec_grammars import find_language

from codespec.api.limits import MAX_SIDE
from codespec.api.types import Snippet
from codespec_lsp.buffer import Buffer, Deletions, Edit, TextPosition
from codespec_lsp.syntax import DocumentSyntax

NEAR = 12  # rows between edits that are recorded as one
MAX_EDITED_ROWS = 4
MAX_NEAR = 64  # documents that can add text to a request: the exclusion decision of each reads the file system
_revisions = itertools.count(1)
WINDOWS, MAC = sys.platform == "win32", sys.platform == "darwin"
CELL = "vscode-notebook-cell"
NAMES_FILES = ("file", "untitled")  # schemes whose path is a file's
MAX_MARKS = 32  # `?` and `#` of a path that are tried as its end
_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_DRIVE = re.compile(rb"/[A-Za-z]:(?=/|\Z)")
_MARK = re.compile(rb"[?#]")
_ENDS = re.compile(rb"(?<=[^/. ])[. ]+(?=/|\Z)")  # trailing dots and spaces of names, which Windows ignores
_OLD_FRAGMENT = re.compile(rb"ch\d{7,}")  # followed by the notebook's scheme, unless that is file

Cells = Sequence[Mapping[str, Any]]  # a notebook's cells in messages
TEXTS = ("markdown", "raw")  # languages of text cells
WITH_MAGICS = "python"  # the language whose cells may contain magics
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!(?:capture|prun|time|timeit)\b)")  # a cell magic, except those for Python code
# A line magic, a shell command, a question about a name, or an assignment of a magic's output. A line that continues
# an expression with `% b` is Python.
_MAGIC = re.compile(
    r"^[ \t]*(?:%{1,2}[A-Za-z_]|!|\?{1,2}[A-Za-z_]|[\w.]+\?{1,2}[ \t]*$|[\w.]+[ \t]*=[ \t]*(?:%[A-Za-z_]|!)).*\n?",
    re.MULTILINE,
)


def now() -> float:
    """Return the event loop's time, in seconds."""
    return asyncio.get_running_loop().time()


@dataclass(eq=False, slots=True)
class Document:
    """An open document.

    `uri` is canonical, `spelled` is the URI as the client last sent it, and `file` is the URI of the file or, for a
    cell, of the notebook. `version` is the client's version, and each text has a unique `revision`. `changed` is the
    event loop's time of the last change, and `edited_rows` the recently edited rows, latest first. `rests` is the last
    known offset of the cursor in code points, or -1. `warmed_up` is the `state` at the last warm-up. `lost` is set
    while the text is unknown.
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
    rests: int = -1
    warmed_up: tuple[int, int] | None = None
    lost: bool = False
    deletions: Deletions = field(default_factory=Deletions)
    syntax: DocumentSyntax = field(init=False)
    snippets: tuple[object, Sequence[Snippet]] | None = None

    def __post_init__(self) -> None:
        self.file = self.file or self.uri

    @property
    def is_cell(self) -> bool:
        return self.file != self.uri

    @property
    def state(self) -> tuple[int, int]:
        """The revision and the last known offset of the cursor."""
        return self.revision, self.rests

    @property
    def path(self) -> str:
        """The path of the document's file, or the path in its URI if it has no file."""
        return path_of(self.file)

    @property
    def language(self) -> str:
        """The name of the document's grammar, or ""."""
        return find_language(self.language_id, self.path)

    @property
    def likely_position(self) -> TextPosition:
        """The likely position of the next request: the cursor's last known position, else the end of the first row."""
        if self.rests >= 0:
            return self.buffer.at(self.rests)
        return TextPosition(0, len(self.buffer.lines[0].rstrip("\r\n")))

    def lose(self) -> None:
        """Mark the text as unknown until the client sends the whole text."""
        self.lost, self.revision = True, next(_revisions)

    def edited(self, edit: Edit) -> None:
        """Record the row of an edit and the text that it deleted."""
        self.revision = next(_revisions)
        self.deletions.edited(edit)
        grown = edit.text.count("\n") - edit.removed.count("\n")
        moved = [row + grown if row > edit.row else row for row in self.edited_rows]
        kept = [row for row in moved if abs(row - edit.row) > NEAR]
        self.edited_rows = [edit.row, *kept][:MAX_EDITED_ROWS]
        self.rests = edit.start + len(edit.text)


class Documents(OrderedDict[str, Document]):
    """All open documents by URI, with the most recently used document at the end."""

    @property
    def last(self) -> Document | None:
        """The most recently used document, or None."""
        return next(reversed(self.values()), None)

    def near(self, document: Document) -> list[Document]:
        """Return up to MAX_NEAR recently used documents, followed by `document`."""
        return [*(each for each in [*self.values()][-MAX_NEAR:] if each is not document), document]


@dataclass(slots=True)
class Notebook:
    """A notebook and its cells' URIs, top to bottom. `one_by_one` is set if the client sends no notebook messages."""

    uri: str
    cells: list[str] = field(default_factory=list)
    one_by_one: bool = False


class Notebooks:
    """The open notebooks of one client. A cell is a document whose `file` is the notebook's URI."""

    def __init__(self) -> None:
        self._open: dict[str, Notebook] = {}
        self._of: dict[str, Notebook] = {}  # by the URI of a cell
        self._texts: set[str] = set()  # cells that are text by the client's cell kind

    def open(self, uri: str, cells: Cells) -> None:
        self.close(uri)
        self._open[uri] = Notebook(uri)
        self.splice(uri, 0, 0, cells)

    def splice(self, uri: str, start: int, count: int, cells: Cells) -> None:
        """Replace `count` cells of a notebook, starting at the index `start`."""
        notebook = self._open.get(uri)
        if notebook is None:
            return
        new = {canonical(cell["document"]): cell.get("kind") == 1 for cell in cells}
        self._texts.difference_update(new)
        self._texts.update(name for name, is_text in new.items() if is_text)
        removed = notebook.cells[start : start + count]
        notebook.cells[start : start + count] = new
        for cell in set(removed).difference(notebook.cells):  # a client may insert a moved cell before it removes it
            self._drop(cell)
        self._of |= dict.fromkeys(new, notebook)

    def close(self, uri: str) -> list[str]:
        """Remove a closed notebook and return its cells, without those that have moved to another notebook."""
        notebook = self._open.pop(uri, None) or Notebook(uri)
        own = [cell for cell in dict.fromkeys(notebook.cells) if self._of.get(cell) is notebook]
        for cell in own:
            self._drop(cell)
        return own

    def settle(self, cells: Cells, documents: Documents) -> list[Document]:
        """Update and return the cells that were opened before a message assigned them to a notebook."""
        changed = []
        for document in map(documents.get, (canonical(cell["document"]) for cell in cells)):
            if document is not None and document.uri in self._of and document.file != self._of[document.uri].uri:
                document.file = self._of[document.uri].uri
                changed.append(document)
        return changed

    def is_text(self, document: Document) -> bool:
        """Return whether a document is a text cell, by its language or by the client's cell kind."""
        return document.is_cell and (document.language_id.lower() in TEXTS or document.uri in self._texts)

    def opened(self, document: str) -> str:
        """Register an opened document and return the URI of its file or, for a cell, of its notebook."""
        uri = notebook_of(document)
        if document not in self._of and uri:
            notebook = self._open.setdefault(uri, Notebook(uri, one_by_one=True))
            self.splice(uri, len(notebook.cells), 0, [{"document": document}])
        return self._of[document].uri if document in self._of else document

    def closed(self, document: str) -> None:
        """Remove a closed cell from its notebook if the client sends no notebook messages."""
        notebook = self._of.get(document)
        if notebook is not None and notebook.one_by_one:
            self.splice(notebook.uri, notebook.cells.index(document), 1, ())
            if not notebook.cells:
                del self._open[notebook.uri]

    def above(self, document: Document, documents: Documents) -> str:
        """Return the code of the nearest cells above a cell that have the same language, as many as fill a prompt."""
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
    """Return a cell's text without magic commands, ending with a line break."""
    if language.lower() == WITH_MAGICS:
        text = "" if _OTHER_LANGUAGE.match(text) else _MAGIC.sub("", text)
    return text if text.endswith("\n") or not text else text + "\n"


def is_magic(language: str, buffer: Buffer, row: int) -> bool:
    """Return whether a cell's row is a magic command, or the cell begins with a magic command for another language."""
    if language.lower() != WITH_MAGICS:
        return False
    return bool(_OTHER_LANGUAGE.match(buffer.text) or _MAGIC.match(buffer.lines[row]))


class UriParts(NamedTuple):
    """The decoded parts of a URI, as bytes because names need not be UTF-8. `rest` is the query and the fragment."""

    scheme: str
    host: bytes
    path: bytes
    rest: bytes


def split_uri(uri: str, windows: bool = WINDOWS) -> UriParts:
    """Split a client's document URI, which may be an arbitrary string."""
    scheme, host, path, rest = _PARTS.match(uri).groups("")  # type: ignore[union-attr]  # it matches any text
    if scheme.lower() in NAMES_FILES:
        path, rest = ("/" if host and rest and not path else "") + path + rest, ""
    parts = UriParts(scheme.lower(), _decode(host).lower(), _composed(_decode(path)), _decode(rest))
    return _as_file(parts, windows) if parts.scheme == "file" else parts


def canonical(uri: str, windows: bool = WINDOWS) -> str:
    """Return the one URI that stands for all spellings of a document's URI."""
    scheme, host, path, rest = split_uri(uri, windows)
    if scheme in NAMES_FILES and _DRIVE.match(path):  # on every system, like VS Code: folders aren't named /C:
        path = path[:2].lower() + path[2:]
    head = f"{scheme}:" if scheme else ""
    authority = f"//{quote(host, safe='')}" if host or path.startswith(b"/") else ""
    return head + authority + quote(path, safe="/:" if head else "/") + quote(rest, safe="?#")


def path_of(uri: str, windows: bool = WINDOWS) -> str:
    """Return the native path of a file URI. For other schemes, return the path in the URI, for display only."""
    scheme, host, path, _ = split_uri(uri, windows)
    text = path.decode("utf-8", "surrogateescape")  # as Python represents file names
    if scheme != "file" or not windows:
        return text
    if host:
        return f"//{host.decode('utf-8', 'replace')}{text}".replace("/", "\\")
    return (text[1:] if _DRIVE.match(path) else text).replace("/", "\\")


def notebook_of(uri: str) -> str:
    """Return the canonical URI of the notebook to which a cell's URI belongs, or "" for the URI of another document.

    VS Code's URI of a cell has the notebook's path and a fragment: the cell number, `s` and the notebook's scheme in
    Base64. In older versions, the fragment is `ch`, the cell number and the notebook's scheme unless that is `file`.
    """
    scheme, host, path, rest = split_uri(uri)
    if scheme != CELL:
        return ""
    old = _OLD_FRAGMENT.match(rest, 1)
    try:
        own = (
            rest[old.end() :].decode("ascii") or "file"
            if old
            else base64.urlsafe_b64decode(rest.partition(b"s")[2].rstrip(b"=") + b"==").decode("ascii")
        )
    except ValueError:
        return ""
    authority = f"//{quote(host, safe='')}" if host or path.startswith(b"/") else ""
    return canonical(f"{own}:{authority}{quote(path)}") if _SCHEME.fullmatch(own) else ""


def other_paths(uri: str) -> list[str]:
    """Return other paths that a careless client may mean: the path cut at a `?` or `#`, or preceded by the host."""
    path, host = path_of(uri), split_uri(uri).host
    cut = [path[: mark.start()] for mark in islice(re.finditer("[?#]", path), MAX_MARKS)]
    return [*cut, f"/{host.decode('utf-8', 'replace')}{path}"] if host and not WINDOWS else cut


def _as_file(parts: UriParts, windows: bool) -> UriParts:
    """Normalize a file URI: drop the host `localhost` and, on Windows, the trailing dots and spaces of names."""
    scheme, host, path, rest = parts
    if host == b"localhost":
        host = b""
    if windows:
        path = _ENDS.sub(b"", path.replace(b"\\", b"/"))
    if path.startswith(b"//") and not host:  # from a path with an extra slash, or from \\\\server\\share
        path = path.lstrip(b"/")
        host, _, path = path.partition(b"/") if windows else (b"", b"", path)
        host, path = host.lower(), b"/" + path
    return UriParts(scheme, host, _without_dots(path), rest)


def _without_dots(path: bytes) -> bytes:
    """Resolve `.` and `..` and drop empty names, as RFC 3986 and editors do, so that each file has only one URI.

    A path with a `?` or `#` is returned unchanged, because the part after that character may not be a path.
    """
    if not path.startswith(b"/") or _MARK.search(path):
        return path
    kept: list[bytes] = []
    root = int(_DRIVE.match(path) is not None)
    for name in path.split(b"/"):
        if name == b"..":
            del kept[max(root, len(kept) - 1) :]
        elif name not in (b"", b"."):
            kept.append(name)
    resolved = b"/" + b"/".join(kept)
    return resolved + b"/" if _DRIVE.fullmatch(resolved) else resolved


def _composed(path: bytes) -> bytes:
    """On a Mac, where all Unicode forms of a path name the same file, convert the path to NFC."""
    if not MAC or path.isascii():
        return path
    return normalize("NFC", path.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _decode(text: str) -> bytes:
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))
