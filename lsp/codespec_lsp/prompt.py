"""Build the daemon request for a cursor: the text around it, its syntax, and snippets of other files.

Enforces the limits of the request's fields. The caller decides which files may be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from codespec_grammars import Cursor

from codespec.api.body import CompletionBody
from codespec.api.limits import MAX_COUNT, MAX_NAME, MAX_PATH, MAX_SIDE
from codespec.api.types import Snippet
from codespec.exclusions.secret_text import key_rows, without_secrets
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.documents import Document
from codespec_lsp.imports import import_rows, imported_names
from codespec_lsp.outline import Outline, split_all
from codespec_lsp.syntax import DocumentSyntax

STEPS = 4  # the start of the prefix moves by a quarter of the window
ROWS_AROUND = 12  # rows above and below an edit
MAX_FILES = 6
MAX_IMPORTS = 1024  # characters of one file's imports
MAX_SNIPPET = 2048  # characters of one snippet
MAX_SNIPPETS = 12_288  # characters of all snippets
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TextAround:
    """The text around a cursor that is sent.

    `offset` is the number of code points before `prefix`. The first `above` code points of the text are from the
    notebook cells above the document.
    """

    uri: str
    prefix: str
    suffix: str
    offset: int = 0
    above: int = 0

    @property
    def own_prefix(self) -> str:
        """The part of the prefix that is in the document itself."""
        return self.prefix[max(0, self.above - self.offset) :]

    @property
    def own_offset(self) -> int:
        """The number of the document's code points before `own_prefix`."""
        return max(0, self.offset - self.above)

    def rest(self, other: TextAround, text: str) -> str | None:
        """Return the rest of `text`, a completion of this prompt, at the other prompt, or None if it does not fit."""
        typed = len(other.prefix) - len(self.prefix)
        if typed < 0 or not text.startswith(other.prefix[len(self.prefix) :]):
            return None  # the common case, before whole texts are compared
        if (self.uri, self.offset, self.suffix) != (other.uri, other.offset, other.suffix):
            return None
        return text[typed:] if other.prefix.startswith(self.prefix) else None

    def is_behind(self, other: TextAround, text: str, most: int) -> bool:
        """Return whether the user typed `text`, a completion of this prompt, and up to `most` characters more."""
        typed = other.prefix[len(self.prefix) :]
        if not 0 < len(typed) - len(text) <= most or not typed.startswith(text):
            return False
        same = (self.uri, self.offset, self.suffix) == (other.uri, other.offset, other.suffix)
        return same and other.prefix.startswith(self.prefix)


def build_prompt(
    uri: str,
    buffer: Buffer,
    position: TextPosition,
    selected: str | None = None,
    until: TextPosition | None = None,
    above: str = "",
) -> TextAround:
    """Build the prompt at a position.

    `selected` replaces the text between the position and `until`, with the cursor after it. `above` precedes the
    document's text.
    """
    prefix = _within(lambda most: _before(above, buffer, position, most))
    suffix = _within(lambda most: buffer.after(until or position, most))
    offset = len(above) + buffer.offset(position) - len(prefix)
    return TextAround(uri, prefix + clean(selected or ""), suffix, offset, len(above))


def _before(above: str, buffer: Buffer, position: TextPosition, most: int) -> str:
    """Return at most `most` characters up to a position. Their start moves in steps, as in `Buffer.before`."""
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
    """Replace lone surrogates, which UTF-8 can't encode. Offsets stay the same."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def with_newlines(text: str) -> str:
    """Return the text with \\n for \\r\\n: a model writes other text after \\r\\n, as it rarely saw it."""
    return text.replace("\r\n", "\n")


def _within(window: Callable[[int], str]) -> str:
    """Return a window of at most MAX_SIDE bytes. A larger one is halved, so that typing does not move it."""
    most = MAX_SIDE
    while len((text := clean(window(most))).encode()) > MAX_SIDE:
        most //= 2
    return text


def request_body(
    prompt: TextAround,
    *,
    document: str,
    version: int | None,
    language: str,
    path: str,
    snippets: Sequence[Snippet],
    cursor: Cursor,
    trigger: str,
    max_tokens: int,
    first_answer_ms: int,
    returns: int = 0,
) -> CompletionBody:
    """Return the request as JSON values. Its line ends are \\n; `returns` is the number of \\r\\n before the prefix."""
    body: CompletionBody = {
        "document": document,
        "language": clean(language)[:MAX_NAME],
        "path": clean(path)[-MAX_PATH:],
        "prefix": with_newlines(prompt.prefix),
        "prefix_offset": prompt.offset - returns,
        "suffix": with_newlines(prompt.suffix),
        "snippets": [
            {"path": clean(snippet.path)[-MAX_PATH:], "text": with_newlines(snippet.text)} for snippet in snippets
        ],
        "cursor": {"context": cursor.context.value, "open_brackets": cursor.open_brackets, "indent": cursor.indent},
        "trigger": trigger,
        "max_tokens": max_tokens,
        "first_answer_ms": first_answer_ms,
    }
    if version is not None and abs(version) <= MAX_COUNT:
        body["version"] = version
    return body


class SnippetCache:
    """A cache of the snippets for each document, which stay the same while the other files don't change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, tuple[Snippet, ...]]] = {}

    def find(
        self,
        here: Document,
        documents: Iterable[Document],
        may_send: Callable[[Document], bool],
        syntax: Mapping[str, DocumentSyntax],
        imported: tuple[tuple[str, Outline], ...] = (),
        wanted: str = "",
    ) -> tuple[Snippet, ...]:
        """Return the snippets for `here`. `imported`: the outlines of files that are not open, `wanted`: a type's name.

        A changed order of use alone doesn't change the result.
        """
        others = [document for document in documents if document is not here and may_send(document)]
        state = (
            frozenset((other.uri, other.revision, syntax[other.uri].tree.parsed) for other in others),
            imported,
            wanted,
        )
        known = self._known.get(here.uri)
        if known is None or known[0] != state:
            known = self._known[here.uri] = (state, find_snippets(here, reversed(others), syntax, imported, wanted))
        return known[1]

    def forget(self, uri: str) -> None:
        """Drop the snippets of a closed document."""
        self._known.pop(uri, None)


def find_snippets(
    here: Document,
    others: Iterable[Document],
    syntax: Mapping[str, DocumentSyntax],
    imported: Sequence[tuple[str, Outline]] = (),
    wanted: str = "",
) -> tuple[Snippet, ...]:
    """Return the snippets for one document, the most useful first: a daemon with little time reads only these.

    First what `here` imports by name from other files, open or not (`imported`), and the definition of the type
    `wanted`. Then the recently edited places of the open files used last, what else imported files define, and the
    imports of the open files. Nothing comes twice: neither what an edited place shows, nor a definition by two ways.
    """
    rows = import_rows(here.buffer.lines)
    names, joined = imported_names(rows) | {wanted}, "\n".join(rows)
    files = [document for document in others if document is not here]
    named = [document for document in files if _stem(document) in joined][:MAX_FILES]
    rest = [document for document in files if document not in named][: MAX_FILES - len(named)]
    places = {each.uri: list(_edited(each)) for each in (*named, *rest)}
    outlines = [(each.path, syntax[each.uri].tree.outline) for each in named]
    types = [(each.path, [block for block in syntax[each.uri].tree.outline if block.name == wanted]) for each in rest]
    shown = [text for texts in places.values() for text in texts]
    first, others_defined = split_all(_once([*outlines, *imported, *types], "".join(shown)), names, wanted)
    edited = [Snippet(each.path, text) for each in (*named, *rest) for text in places[each.uri]]
    imports = [Snippet(each.path, _imports(each, "".join(shown))) for each in (*named, *rest)]
    snippets: list[Snippet] = []
    left = MAX_SNIPPETS
    for each in (*first, *edited, *others_defined, *imports):
        text = clean(without_secrets(each.text))
        if text.strip() and len(text) <= left:
            left -= len(text)
            snippets.append(Snippet(each.path, text))
    return tuple(snippets)


def _once(outlines: Iterable[tuple[str, Outline]], shown: str) -> list[tuple[str, Outline]]:
    """Return the outlines without the definitions that an earlier one has, or whose rows are all `shown`."""
    seen, kept = set[str](), list[tuple[str, Outline]]()
    for path, blocks in outlines:
        new = [block for block in blocks if block.text not in seen]
        kept.append((path, [block for block in new if not all(row in shown for row in block.text.splitlines())]))
        seen.update(block.text for block in new)
    return kept


def _imports(document: Document, shown: str) -> str:
    """Return the import rows of a document that are not `shown`."""
    rows = [row for row in import_rows(document.buffer.lines) if row not in shown]
    return without_secrets("".join(rows))[:MAX_IMPORTS]


def _edited(document: Document) -> Iterable[str]:
    """Yield the text around recently edited rows, the latest first; no row twice, none with a secret."""
    lines = document.buffer.lines
    seen = key_rows(lines)
    for row in document.edited_rows:
        first, last = max(0, row - ROWS_AROUND), min(len(lines), row + ROWS_AROUND + 1)
        rows = [at for at in range(first, last) if at not in seen]
        seen.update(rows)
        yield without_secrets("".join(lines[at] for at in rows))[:MAX_SNIPPET]


def _stem(document: Document) -> str:
    name = document.path.replace("\\", "/").rpartition("/")[2]
    return name.partition(".")[0] or name
