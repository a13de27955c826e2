"""Pieces of the other open files that go along with a request: their imports, and where they were edited lately.

Knows documents and how imports begin; does not know which files may be sent. While one file is typed in, nothing in the
others changes, and so neither do the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from codespec_lsp.asking import MOST_PATH, Snippet, clean
from codespec_lsp.documents import Document

AROUND = 12  # rows above and below an edit
MOST_FILES = 6
MOST_IMPORTS = 1024  # characters of one file's imports
MOST_PIECE = 2048  # characters of one piece
MOST = 12_288  # characters of all
LOOKED_AT = 400  # rows that are searched for imports
_IMPORT = re.compile(r"\s*(?:import|from|use|using|#\s*include|require|include|package|extern crate|export .* from)\b")
_REQUIRE = re.compile(r".*\brequire\(")


def find_snippets(here: Document, others: Iterable[Document]) -> tuple[Snippet, ...]:
    """The pieces for one document, the files that it names in its imports first, then those used last."""
    named = "\n".join(_imports(here))
    files = sorted(
        (document for document in others if document is not here),
        key=lambda document: _stem(document) not in named,
    )
    snippets: list[Snippet] = []
    left = MOST
    for document in files[:MOST_FILES]:
        for text in _pieces(document):
            if not text.strip() or len(text) > left:
                continue
            left -= len(text)
            snippets.append(Snippet(clean(document.path)[-MOST_PATH:], clean(text)))
    return tuple(snippets)


class FrozenSnippets:
    """Remembers the pieces of each document for as long as the other files are what they were."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, tuple[Snippet, ...]]] = {}

    def find(
        self, here: Document, documents: Iterable[Document], may_send: Callable[[Document], bool]
    ) -> tuple[Snippet, ...]:
        """The pieces for `here`. The order of use does not count while nothing else changes."""
        others = [document for document in documents if document is not here and may_send(document)]
        state = frozenset((document.uri, document.version) for document in others)
        kept = self._kept.get(here.uri)
        if kept is None or kept[0] != state:
            kept = self._kept[here.uri] = (state, find_snippets(here, reversed(others)))
        return kept[1]

    def forget(self, uri: str) -> None:
        """The document is gone."""
        self._kept.pop(uri, None)


def _pieces(document: Document) -> Iterable[str]:
    """The imports, then the places edited lately, the latest first; no row twice."""
    imports = "".join(_imports(document))[:MOST_IMPORTS]
    yield imports
    seen: set[int] = set()
    lines = document.buffer.lines
    for row in document.places:
        rows = [at for at in range(max(0, row - AROUND), min(len(lines), row + AROUND + 1)) if at not in seen]
        seen.update(rows)
        yield "".join(lines[at] for at in rows)[:MOST_PIECE]


def _imports(document: Document) -> list[str]:
    rows = document.buffer.lines[:LOOKED_AT]
    return [line for line in rows if len(line) < 200 and (_IMPORT.match(line) or _REQUIRE.match(line))]


def _stem(document: Document) -> str:
    name = document.path.replace("\\", "/").rpartition("/")[2]
    return name.partition(".")[0] or name
