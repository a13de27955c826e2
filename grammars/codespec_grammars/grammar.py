"""Load a language's grammar and its `contexts.scm`, parse a short text and look up the contexts captured at its tip.

tree-sitter and a grammar's wheel are imported on first use; both may be missing. `WindowService` runs in a process made
by the fork server. It never parses incrementally: an incremental tree differs from a fresh one if the code is broken.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec_grammars.language import GrammarDataError, Language, find_language, languages
from codespec_grammars.lexer_rules import LexerRules, compile_rules

if TYPE_CHECKING:
    import tree_sitter

# tree-sitter treats an unknown predicate as true, so the pattern would capture everything. Unknown ones are rejected.
PREDICATES = re.compile(r"(?:not-)?(?:any-)?(?:eq|match)\?|(?:not-)?any-of\?|set!|is(?:-not)?\?")
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|@([\w.-]+)|#([\w.-]+[?!]?)')
_INHERITS = re.compile(r";+\s*inherits:\s*([\w, -]+)\s*\n")
_ROW = re.compile(r"row (\d+)")
MATCH_LIMIT = 256
# Progress callbacks before a parse is given up. One comes every hundred parser steps: 13 microseconds in clean code, up
# to 200 in garbage. Dense clean code takes 17 callbacks per KB.
MAX_STEPS = 32
MAX_BYTES = 8192
log = logging.getLogger("codespec_grammars")


class Context(StrEnum):
    """The syntactic context at the tip of a text. A `contexts.scm` may use only these names as captures."""

    COMMENT = "comment"  # inside a comment
    DOCSTRING = "docstring"  # inside a documentation string or comment (a docstring, `/** … */`, `///`)
    STRING = "string"  # inside a string literal, except its interpolations
    IMPORT = "import"  # inside an import, include, use or package statement
    SIGNATURE = "signature"  # inside the head of a function or type: name, parameters, result
    ARGUMENTS = "arguments"  # directly inside the brackets of a call
    CLOSING = "closing"  # right after a closing bracket, where further closers are likely
    BLOCK_START = "block_start"  # right after a block opener (`:`, `{`, `then`), on the same line
    INDENT = "indent"  # in the white space at the start of a line
    OPERATOR = "operator"  # right after an operator or an assignment sign
    IDENTIFIER = "identifier"  # inside a word, or right after a token that a member's name follows (`.`, `::`)
    STATEMENT = "statement"  # anywhere else in code
    FREE_TEXT = "free_text"  # prose: Markdown paragraphs, text between tags
    UNKNOWN = "unknown"  # no grammar for this language (the draft length is not capped)


TEXT_LIKE = frozenset({Context.COMMENT, Context.DOCSTRING, Context.STRING, Context.FREE_TEXT})
# These describe the last token; the others describe the construct around the tip.
OF_LAST_TOKEN = frozenset({Context.CLOSING, Context.BLOCK_START, Context.OPERATOR, Context.IDENTIFIER})
NAMES = frozenset(context.value for context in Context)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that can be parsed: its data, tree-sitter grammar, lexer rules and context query.

    If two patterns of the query capture the same node, the later one wins.
    """

    data: Language
    language: tree_sitter.Language
    contexts: tree_sitter.Query
    rules: LexerRules


@cache
def load_grammar(language: str) -> Grammar | None:
    """Load the grammar for a language name or id; None without one, or without tree-sitter or the grammar's wheel.

    Raises GrammarDataError only if this package's data is invalid.
    """
    name = find_language(language)
    if not name:
        return None
    data = languages()[name]
    try:
        import tree_sitter

        module = importlib.import_module(data.module)
    except ImportError:
        return None
    try:
        grammar = tree_sitter.Language(getattr(module, data.function)())
    except ValueError as error:
        log.warning("The installed grammar of %s does not fit this tree-sitter (%s): upgrade both.", name, error)
        return None
    return Grammar(data, grammar, compile_contexts(grammar, data.folder), compile_rules(data))


def compile_contexts(language: tree_sitter.Language, folder: Path) -> tree_sitter.Query:
    """Compile `folder/contexts.scm`, preceded by the files that its first line names after `; inherits:`.

    Raises GrammarDataError with file and line.
    """
    sources = contexts_of(folder)
    for path, source in sources:
        for token in _TOKEN.finditer(source):
            line = source.count("\n", 0, token.start()) + 1
            if token[1] and token[1] not in NAMES:
                raise GrammarDataError(path, line, f"@{token[1]} is not a context; use one of {', '.join(Context)}")
            if token[2] and not PREDICATES.fullmatch(token[2]):
                raise GrammarDataError(path, line, f"#{token[2]} is not a predicate that tree-sitter evaluates")
        _compile(language, path, source)  # separately first, so that an error's row refers to this file
    return _compile(language, sources[-1][0], "\n".join(source for _, source in sources))


def contexts_of(folder: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, str]]:
    """Return the files and sources that make up a folder's query, inherited ones first."""
    path = folder / "contexts.scm"
    source = path.read_text(encoding="utf-8")
    if path in above:
        raise GrammarDataError(path, 1, "this file inherits from itself")
    header = _INHERITS.match(source)
    sources: list[tuple[Path, str]] = []
    for name in header[1].replace(" ", "").split(",") if header else []:
        if not (folder.parent / name / path.name).is_file():
            raise GrammarDataError(path, 1, f"inherits from {name!r}, which has no {path.name}")
        sources += [item for item in contexts_of(folder.parent / name, (*above, path)) if item not in sources]
    return [*sources, (path, source)]


def _compile(language: tree_sitter.Language, path: Path, source: str) -> tree_sitter.Query:
    import tree_sitter  # optional dependency, installed if there is a Language

    try:
        return tree_sitter.Query(language, source)
    except tree_sitter.QueryError as error:
        row = _ROW.search(str(error))
        raise GrammarDataError(path, int(row[1]) + 1 if row else 1, str(error)) from error


@dataclass(frozen=True, slots=True)
class Captures:
    """The captures at a tip.

    `inside` is the innermost captured node around the tip, `token` the capture of the last token before it. `clean` is
    set if there is no error between the tip and `inside`, `errors` if there is one anywhere in the tree.
    """

    inside: Context | None = None
    token: Context | None = None
    clean: bool = False
    errors: bool = True


NOTHING = Captures()


def look_up(tree: tree_sitter.Tree, contexts: tree_sitter.Query, tip: int, width: int, left: int) -> Captures:
    """Return the captures around the placeholder at `tip`, which is `width` bytes long.

    `left` is the end of the last token before it. The look-up is left-biased: at the end of a line, the node at the tip
    itself is an outer block or the next token.
    """
    import tree_sitter

    root = tree.root_node
    cursor = tree_sitter.QueryCursor(contexts, match_limit=MATCH_LIMIT)
    cursor.set_byte_range(max(0, left - 1), tip + width)
    inside: tuple[int, int, Context] | None = None
    token: tuple[int, Context] | None = None
    for pattern, captures in cursor.matches(root):
        for name, node in ((name, node) for name, nodes in captures.items() for node in nodes):
            start, end = node.start_byte, node.end_byte
            if start <= tip and end >= tip + width:
                if inside is None or (end - start, -pattern) < inside[:2]:
                    inside = (end - start, -pattern, Context(name))
            elif start < left == end and name in OF_LAST_TOKEN and (token is None or pattern >= token[0]):
                token = (pattern, Context(name))
    around = nodes_around(root, tip, tip + width) if root.has_error else ()
    errors = [node.end_byte - node.start_byte for node in around if node.is_error]
    clean = not errors or (inside is not None and inside[0] < errors[-1])
    return Captures(inside[2] if inside else None, token[1] if token else None, clean, root.has_error)


def nodes_around(root: tree_sitter.Node, start: int, end: int) -> Iterator[tree_sitter.Node]:
    """Yield the nodes that contain a range, outermost first.

    Descends from the root once, because tree-sitter finds a node's parent by descending from the root each time.
    """
    cursor = root.walk()
    node: tree_sitter.Node | None = root
    while node is not None and node.start_byte <= start and node.end_byte >= end:
        yield node
        node = cursor.node if cursor.goto_first_child_for_byte(start) is not None else None


class WindowService:
    """Looks up the tips of texts in one language."""

    SECONDS = 0.1  # CPU time limit, for a parse that makes no progress callbacks; clean code takes 1 ms
    MEMORY = 256 << 20

    def __init__(self, language: str) -> None:
        grammar = load_grammar(language)
        assert grammar is not None  # the client checked
        self._parser, self._contexts = WindowParser(grammar.language), grammar.contexts

    def answer(self, request: tuple[str, int, int, int]) -> tuple[Any, ...] | None:
        """Return the fields of `Captures`, or None if the parse was given up.

        `request` is the text, the placeholder's position and length, and the end of the last token before it, in bytes.
        """
        text, tip, width, left = request
        tree = self._parser.parse(text.encode())
        return astuple(look_up(tree, self._contexts, tip, width, left)) if tree is not None else None


class WindowParser:
    """A parser for one language. A tree is valid only until the next text is parsed.

    py-tree-sitter (0.25, 0.26) never frees the objects that a read callback returns. So each text is put at the end of
    one buffer, and the callback returns views of that, always the same one for the same position.
    """

    def __init__(self, language: tree_sitter.Language) -> None:
        import tree_sitter

        self._parser = tree_sitter.Parser(language)
        self._buffer = memoryview(bytearray(MAX_BYTES))
        self._views: dict[int, memoryview] = {}

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """Return the tree of `text`, or None if the text is too long or parsing it takes too many steps."""
        if len(text) > MAX_BYTES:
            return None
        base = MAX_BYTES - len(text)
        self._buffer[base:] = text
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MAX_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            if done:  # a query reads nodes byte by byte, and one-byte objects are cached by Python
                return text[offset : offset + 1]
            start = min(base + offset, MAX_BYTES)
            return self._views.get(start) or self._views.setdefault(start, self._buffer[start:])

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            return None
        finally:
            done = True
