"""Build requests to the daemon from the text around a cursor, its syntax, and snippets of files that may be sent."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from codespec.api.body import CompletionBody
from codespec.api.limits import MAX_COUNT, MAX_NAME, MAX_PATH, MAX_SIDE
from codespec.api.types import Snippet
from codespec.exclusions.secrets import key_rows, without_secrets
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.documents import Document, Documents
from codespec_lsp.exclusions import Exclusions
from codespec_lsp.imports import ImportedFiles, import_rows, imported_names
from codespec_lsp.outline import Outline, split_all
from codespec_lsp.settings import OVERHEAD_MS, EditorSettings

STEPS = 4  # the start of the prefix moves in steps of a quarter of the window, so that prompts share their beginning
ROWS_AROUND = 12  # rows above and below an edit
MAX_FILES = 6  # open files with snippets
MAX_IMPORTS = 1024  # characters of one file's imports
MAX_SNIPPET = 2048  # characters of one snippet
MAX_SNIPPETS = 12_288  # characters of all snippets
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_ROWS, MAX_ROW, MAX_WORD = 100, 400, 64  # rows searched for a value's type; characters of a row and of a name
_RECEIVER = re.compile(r"(?<![\w.)\]])([^\W\d]\w*)(?:\?|!)?(?:\.|->)\w*\Z")
_WRAPPERS = r"(?:(?:Optional|Final|Annotated|Readonly|Box|Arc|Rc)[\[<]\s*)*"
_TYPE = r"([^\W\d]\w*(?:(?:\.|::)[^\W\d]\w*)*)"
# References, pointers, quotes and lifetimes before a type.
_MARKS = r"""[&*"']*(?:'\w+\s+)?(?:mut\s+|const\s+)*"""
_FORMS = (
    r"\b{name}\s*\??\s*:\s*" + _MARKS + _WRAPPERS + _MARKS + _TYPE,  # name: Type
    r"\b{name}\s*:?=\s*&?(?:await\s+)?(?:new\s+)?" + _TYPE + r"(?:::new)?\s*[({{]",  # name = Type(
    r"\bisinstance\(\s*{name}\s*,\s*\(?\s*" + _TYPE,
    r"\b{name}\s+(?:instanceof|is)\s+" + _TYPE,
    r"\b" + _TYPE + r"(?:<[\w\s,.?]*>)?(?:\s+|\s*[*&]+\s*){name}\s*[=;,):]",  # Type name
    r"\b{name}\s+\*?" + _TYPE + r"\s*[,)]",  # Go's parameters: name *Type
)
_NO_TYPES = frozenset(
    ("return", "new", "await", "const", "let", "var", "val", "auto", "final", "in", "not", "is", "else", "case", "of")
)


@dataclass(frozen=True, slots=True)
class TextAround:
    """The text around a cursor that is sent to the daemon.

    `offset` is the start of `prefix`, in code points of the text that consists of the notebook cells above the document
    (`above` code points) and the document.
    """

    uri: str
    prefix: str
    suffix: str
    offset: int = 0
    above: int = 0

    @property
    def own_prefix(self) -> str:
        """The part of the prefix that is in the document, not in the cells above."""
        return self.prefix[max(0, self.above - self.offset) :]

    @property
    def own_offset(self) -> int:
        """The number of the document's code points before `own_prefix`."""
        return max(0, self.offset - self.above)

    def extended(self, typed: str) -> TextAround | None:
        """Return the prompt with `typed` inserted at the cursor, or None if the prefix becomes too long."""
        prefix = self.prefix + clean(typed)
        return replace(self, prefix=prefix) if len(prefix.encode()) <= MAX_SIDE else None

    def rest(self, other: TextAround, text: str) -> str | None:
        """Return the rest of this prompt's completion `text` at the prompt `other`, or None if `text` does not fit."""
        typed = len(other.prefix) - len(self.prefix)
        if typed < 0 or not text.startswith(other.prefix[len(self.prefix) :]):
            return None  # the common case, without comparing whole texts
        return text[typed:] if self._begins(other) else None

    def is_behind(self, other: TextAround, text: str, most: int) -> bool:
        """Return whether another prompt extends this one by its completion `text` and up to `most` more characters."""
        typed = other.prefix[len(self.prefix) :]
        return 0 < len(typed) - len(text) <= most and typed.startswith(text) and self._begins(other)

    def _begins(self, other: TextAround) -> bool:
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
    """Build the prompt at a position in a document. `above` is the text of the notebook cells above the document.

    A `selected` text replaces the text from the position to `until`, and the prompt's cursor is after that text.
    """
    prefix = _within(lambda most: _before(above, buffer, position, most))
    suffix = _within(lambda most: buffer.after(until or position, most))
    offset = len(above) + buffer.offset(position) - len(prefix)
    return TextAround(uri, prefix + clean(selected or ""), suffix, offset, len(above))


def _before(above: str, buffer: Buffer, position: TextPosition, most: int) -> str:
    """Return up to `most` characters before a position. As in `Buffer.before`, the text's start moves in steps."""
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
    """Replace \\r\\n with \\n, because models rarely saw \\r\\n in training and complete such text differently."""
    return text.replace("\r\n", "\n")


def _within(window: Callable[[int], str]) -> str:
    """Return `window(most)`, with `most` halved until the text has at most MAX_SIDE bytes."""
    most = MAX_SIDE
    while len((text := clean(window(most))).encode()) > MAX_SIDE:
        most //= 2  # smaller steps would move the text's start while the user types
    return text


class RequestContext:
    """Builds request bodies for one client, with context from the client's other documents and files."""

    def __init__(self, documents: Documents, exclusions: Exclusions, settings: Callable[[], EditorSettings]) -> None:
        self.documents, self.exclusions, self.settings = documents, exclusions, settings
        self.imported = ImportedFiles(exclusions)
        self._name = secrets.token_hex(4)

    def request_body(self, document: Document, prompt: TextAround, trigger: str, in_document: bool) -> CompletionBody:
        """Return a request body with \\n line endings. `in_document` is set if the whole prompt is in the document."""
        settings, before = self.settings(), document.buffer.text[: prompt.own_offset].encode("utf-8", "replace")
        cursor = document.syntax.find_cursor(prompt.own_prefix, prompt.suffix, len(before), in_document)
        *above, line = prompt.prefix.rsplit("\n", MAX_ROWS + 1)
        snippets = self._find_snippets(document, receiver_type(line, above))
        body: CompletionBody = {
            "document": self.document_name(document),
            "language": clean(document.language_id)[:MAX_NAME],
            "path": self.shown(document.path),
            "prefix": with_newlines(prompt.prefix),
            "prefix_offset": prompt.offset - before.count(b"\r\n"),
            "suffix": with_newlines(prompt.suffix),
            "snippets": [{"path": self.shown(each.path), "text": with_newlines(each.text)} for each in snippets],
            "cursor": {"context": cursor.context.value, "open_brackets": cursor.open_brackets, "indent": cursor.indent},
            "trigger": trigger,
            "max_tokens": settings.max_tokens,
            "first_answer_ms": max(1, settings.budget_ms - OVERHEAD_MS),
        }
        if document.version is not None and abs(document.version) <= MAX_COUNT:
            body["version"] = document.version
        return body

    @property
    def sends_others(self) -> bool:
        """Whether the settings allow sending text of other files."""
        return self.settings().snippets

    async def look_at_imports(self, document: Document) -> None:
        """Search for the files that a document imports, if the settings allow sending text of other files."""
        if self.sends_others and self.documents.get(document.uri) is document:
            await self.imported.look(document)

    def open_files(self, document: Document) -> tuple[tuple[str, str], ...]:
        """Return the paths and texts of the other open files, from which drafts for a document may be copied."""
        others = [each for each in self.near(document) if each is not document and self.may_send(each)]
        return tuple((each.path, with_newlines(each.buffer.text)) for each in reversed(others))

    def document_name(self, document: Document) -> str:
        """Return the name that requests use for a document. A file that is open in two editors has two names."""
        return f"{self._name}-{hashlib.blake2b(document.uri.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    def shown(self, path: str) -> str:
        """Return a path as shown to the model by `Rules.shown`, without lone surrogates, at most MAX_PATH long."""
        return clean(self.exclusions.rules.shown(path))[-MAX_PATH:]

    def may_send(self, document: Document) -> bool:
        """Return whether a document's text may be sent with another document's request."""
        return not document.lost and self.exclusions.may_go_along(document.file)

    async def refresh(self, document: Document) -> None:
        """Renew the exclusion decisions of all documents whose text may be sent with a request in this document."""
        await self.exclusions.refresh([each.file for each in self.near(document)])

    def near(self, document: Document) -> list[Document]:
        """Return the documents whose text may be sent with a request in this document."""
        return self.documents.near(document) if self.sends_others else [document]

    def _find_snippets(self, document: Document, wanted: str) -> Sequence[Snippet]:
        """Return snippets of other files, recomputed if one changes. `wanted` is a type whose definition is useful."""
        if not self.sends_others:
            return ()
        imported = self.imported.known(document, {each.path for each in self.documents.values()})
        others = [each for each in self.near(document) if each.file != document.file and self.may_send(each)]
        state = frozenset((each.uri, each.revision, each.syntax.tree.parsed) for each in others), imported, wanted
        if document.snippets is None or document.snippets[0] != state:
            document.snippets = state, find_snippets(document, others[::-1], imported, wanted)
        return document.snippets[1]


def find_snippets(
    here: Document, files: Sequence[Document], imported: Sequence[tuple[str, Outline]], wanted: str
) -> tuple[Snippet, ...]:
    """Return snippets for the document `here`, most useful first, because a hurried daemon reads only the first ones.

    The order is: definitions that `here` imports by name from open `files` or from `imported` files, and of the type
    `wanted`; recently edited places of the open files; other definitions of imported files; imports of the open files.
    No text is repeated.
    """
    rows = import_rows(here.buffer.lines)
    names, joined = imported_names(rows) | {wanted}, "\n".join(rows)
    named = [document for document in files if _stem(document) in joined][:MAX_FILES]
    rest = [document for document in files if document not in named][: MAX_FILES - len(named)]
    places = {each.uri: list(_edited(each)) for each in (*named, *rest)}
    outlines = [(each.path, each.syntax.tree.outline) for each in named]
    types = [(each.path, [block for block in each.syntax.tree.outline if block.name == wanted]) for each in rest]
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
    """Return the outlines without definitions that an earlier outline contains or whose rows are all in `shown`."""
    seen, kept = set[str](), list[tuple[str, Outline]]()
    for path, blocks in outlines:
        new = [block for block in blocks if block.text not in seen]
        kept.append((path, [block for block in new if not all(row in shown for row in block.text.splitlines())]))
        seen.update(block.text for block in new)
    return kept


def _imports(document: Document, shown: str) -> str:
    """Return the import rows of a document that are not in the text `shown`."""
    rows = [row for row in import_rows(document.buffer.lines) if row not in shown]
    return without_secrets("".join(rows))[:MAX_IMPORTS]


def _edited(document: Document) -> Iterable[str]:
    """Yield the text around recently edited rows, latest first, without repeated rows and rows of secret keys."""
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


def receiver_type(line: str, above: Sequence[str]) -> str:
    """Return the type of the value before the last dot of `line`, as declared in `line` or `above`, or ""."""
    found = _RECEIVER.search(line[-MAX_ROW:])
    if found is None or len(found[1]) > MAX_WORD or found[1] in ("self", "this", "super"):
        return ""
    name = re.escape(found[1])
    forms = [re.compile(form.format(name=name)) for form in _FORMS]
    for row in (line[-MAX_ROW:][: found.start()], *reversed(above[-MAX_ROWS:])):
        if found[1] not in row or len(row) > MAX_ROW:
            continue
        for form in forms:
            for message in form.finditer(row):
                last = re.split(r"\.|::", message[1].removesuffix("::new"))[-1]
                if last not in _NO_TYPES and last[:1].isupper():
                    return last
    return ""
