"""What the daemon is sent for one cursor: the text around it, facts about the cursor, pieces of other files.

Knows the request's fields and their bounds; does not know which files may be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codespec_grammars import Cursor

from codespec.types import MOST_SIDE
from codespec_lsp.buffer import Buffer, Position
from codespec_lsp.documents import Document
from codespec_lsp.imports import import_rows
from codespec_lsp.syntax import DocumentSyntax

MOST_LANGUAGE, MOST_PATH = 64, 4096  # characters
MOST_VERSION = 2**31 - 1  # of a document, as the protocol has it
STEPS = 4  # the prefix's start moves by a quarter
ROWS_AROUND = 12  # above and below an edit
MOST_FILES = 6
MOST_IMPORTS = 1024  # characters of one file's imports
MOST_SNIPPET = 2048  # characters of one snippet
MOST_SNIPPETS = 12_288  # characters of all snippets
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text around a cursor as far as it is sent; `offset` code points of the text stand before `prefix`. `above`
    code points at that text's start are not the document's own, but of a notebook's cells above it."""

    uri: str
    prefix: str
    suffix: str
    offset: int = 0
    above: int = 0

    @property
    def own_prefix(self) -> str:
        """What of the prefix stands in the document itself."""
        return self.prefix[max(0, self.above - self.offset) :]

    @property
    def own_offset(self) -> int:
        """How many code points of the document stand before that."""
        return max(0, self.offset - self.above)

    def rest(self, other: Prompt, text: str) -> str | None:
        """What of `text`, a completion of this prompt, is still to come at the other; None where it does not fit."""
        typed = len(other.prefix) - len(self.prefix)
        if typed < 0 or not text.startswith(other.prefix[len(self.prefix) :]):
            return None  # most end here, before whole texts are compared
        if (self.uri, self.offset, self.suffix) != (other.uri, other.offset, other.suffix):
            return None
        return text[typed:] if other.prefix.startswith(self.prefix) else None


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of another file."""

    path: str
    text: str


def build_prompt(
    uri: str,
    buffer: Buffer,
    position: Position,
    selected: str | None = None,
    until: Position | None = None,
    above: str = "",
) -> Prompt:
    """The text around a position. `selected` is taken to stand between the position and `until`, before the cursor;
    `above` stands before the document."""
    prefix = _within(lambda most: _before(above, buffer, position, most))
    suffix = _within(lambda most: buffer.after(until or position, most))
    offset = len(above) + buffer.offset(position) - len(prefix)
    return Prompt(uri, prefix + clean(selected or ""), suffix, offset, len(above))


def _before(above: str, buffer: Buffer, position: Position, most: int) -> str:
    """At most `most` characters up to a position, whose start moves in steps, as that of `Buffer.before` does."""
    step = most // STEPS
    own = buffer.before(position, most, step)
    too_many = len(above) + len(own) - most
    if not above or len(own) < buffer.offset(position):
        return own
    if too_many <= 0:
        return above + own
    cut = -(-too_many // step) * step
    return (above[above.find("\n", cut - 1) + 1 :] if cut < len(above) else "") + own


def clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 can't spell. Offsets stay the same."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def _within(window: Callable[[int], str]) -> str:
    """A window of at most MOST_SIDE bytes. If it has more, it is halved, so that typing does not move it."""
    most = MOST_SIDE
    while len((text := clean(window(most))).encode()) > MOST_SIDE:
        most //= 2
    return text


def request_body(
    prompt: Prompt,
    *,
    document: str,
    version: int | None,
    language: str,
    path: str,
    snippets: Sequence[Snippet],
    cursor: Cursor,
    trigger: str,
    max_tokens: int,
) -> dict[str, Any]:
    """The request as JSON values."""
    return {
        "document": document,
        "version": version if version is not None and abs(version) <= MOST_VERSION else None,
        "language": clean(language)[:MOST_LANGUAGE],
        "path": clean(path)[-MOST_PATH:],
        "prefix": prompt.prefix,
        "prefix_offset": prompt.offset,
        "suffix": prompt.suffix,
        "snippets": [{"path": snippet.path, "text": snippet.text} for snippet in snippets],
        "cursor": {"context": cursor.context.value, "open_brackets": cursor.open_brackets, "indent": cursor.indent},
        "trigger": trigger,
        "max_tokens": max_tokens,
    }


class SnippetCache:
    """The snippets for each document. While one file is typed in, the others do not change, and so neither do they."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, tuple[Snippet, ...]]] = {}

    def find(
        self,
        here: Document,
        documents: Iterable[Document],
        may_send: Callable[[Document], bool],
        syntax: Mapping[str, DocumentSyntax],
        imported: tuple[Snippet, ...] = (),
    ) -> tuple[Snippet, ...]:
        """The snippets for `here`; `imported` are those of files that are not open. The order of use does not count
        while nothing else changes."""
        others = [document for document in documents if document is not here and may_send(document)]
        state = (frozenset((other.uri, other.revision, syntax[other.uri].parsed) for other in others), imported)
        known = self._known.get(here.uri)
        if known is None or known[0] != state:
            known = self._known[here.uri] = (state, find_snippets(here, reversed(others), syntax, imported))
        return known[1]

    def forget(self, uri: str) -> None:
        """The document is gone."""
        self._known.pop(uri, None)


def find_snippets(
    here: Document,
    others: Iterable[Document],
    syntax: Mapping[str, DocumentSyntax],
    imported: Sequence[Snippet] = (),
) -> tuple[Snippet, ...]:
    """The snippets for one document: first of the files that its imports name, with the heads of what these define, be
    they open or `imported` from disk, then of those used last."""
    rows = "\n".join(import_rows(here.buffer.lines))
    files = [document for document in others if document is not here]
    named = [document for document in files if _stem(document) in rows][:MOST_FILES]
    rest = [document for document in files if _stem(document) not in rows][: MOST_FILES - len(named)]
    snippets: list[Snippet] = []
    left = MOST_SNIPPETS
    for path, text in (
        *((each.path, text) for each in named for text in _pieces(each, syntax[each.uri].outline())),
        *((each.path, each.text) for each in imported),
        *((each.path, text) for each in rest for text in _pieces(each, "")),
    ):
        if not text.strip() or len(text) > left:
            continue
        left -= len(text)
        snippets.append(Snippet(clean(path)[-MOST_PATH:], clean(text)))
    return tuple(snippets)


def _pieces(document: Document, defined: str) -> Iterable[str]:
    """The imports, what is defined, then what is around the rows edited lately, the latest first; no row twice."""
    yield "".join(import_rows(document.buffer.lines))[:MOST_IMPORTS]
    yield defined
    seen: set[int] = set()
    lines = document.buffer.lines
    for row in document.edited_rows:
        first, last = max(0, row - ROWS_AROUND), min(len(lines), row + ROWS_AROUND + 1)
        rows = [at for at in range(first, last) if at not in seen]
        seen.update(rows)
        yield "".join(lines[at] for at in rows)[:MOST_SNIPPET]


def _stem(document: Document) -> str:
    name = document.path.replace("\\", "/").rpartition("/")[2]
    return name.partition(".")[0] or name
