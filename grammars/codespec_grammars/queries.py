"""Read, compile and run a language's `contexts.scm`.

Checks capture names and predicates, and resolves `; inherits: x, y` on the first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from codespec_grammars.contexts import NAMES, OF_LAST_TOKEN, Context
from codespec_grammars.language import GrammarDataError

if TYPE_CHECKING:
    import tree_sitter

# tree-sitter treats an unknown predicate as true, so the pattern would capture everything. Unknown ones are rejected.
PREDICATES = re.compile(r"(?:not-)?(?:any-)?(?:eq|match)\?|(?:not-)?any-of\?|set!|is(?:-not)?\?")
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|@([\w.-]+)|#([\w.-]+[?!]?)')
_INHERITS = re.compile(r";+\s*inherits:\s*([\w, -]+)\s*\n")
_ROW = re.compile(r"row (\d+)")
MATCH_LIMIT = 256


@dataclass(frozen=True, slots=True)
class ContextQuery:
    """A compiled query. If two patterns capture the same node, the later one wins."""

    query: tree_sitter.Query
    source: str


def compile_contexts(language: tree_sitter.Language, folder: Path) -> ContextQuery:
    """Compile `folder/contexts.scm`, preceded by the files it inherits from.

    Raises GrammarDataError with file and line.
    """
    sources = _with_inherited(folder / "contexts.scm", ())
    for path, source in sources:
        _check(path, source)
        _compile(language, path, source)  # separately first, so that an error's row refers to this file
    whole = "\n".join(source for _, source in sources)
    return ContextQuery(_compile(language, sources[-1][0], whole), whole)


def _with_inherited(path: Path, above: tuple[Path, ...]) -> list[tuple[Path, str]]:
    source = path.read_text(encoding="utf-8")
    if path in above:
        raise GrammarDataError(path, 1, "this file inherits from itself")
    header = _INHERITS.match(source)
    sources: list[tuple[Path, str]] = []
    for name in header[1].replace(" ", "").split(",") if header else []:
        parent = path.parent.parent / name / path.name
        if not parent.is_file():
            raise GrammarDataError(path, 1, f"inherits from {name!r}, which has no {path.name}")
        sources.extend(item for item in _with_inherited(parent, (*above, path)) if item not in sources)
    return [*sources, (path, source)]


def _check(path: Path, source: str) -> None:
    for token in _TOKEN.finditer(source):
        line = source.count("\n", 0, token.start()) + 1
        if token[1] and token[1] not in NAMES:
            raise GrammarDataError(path, line, f"@{token[1]} is not a context; use one of {', '.join(Context)}")
        if token[2] and not PREDICATES.fullmatch(token[2]):
            raise GrammarDataError(path, line, f"#{token[2]} is not a predicate that tree-sitter evaluates")


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

    `inside` is the innermost captured node around the tip, `token` the capture of the last token before it, and `ended`
    the widest capture that ends with that token. `clean` is set if there is no error between the tip and `inside`,
    `errors` if there is one anywhere in the tree.
    """

    inside: Context | None = None
    token: Context | None = None
    ended: Context | None = None
    clean: bool = False
    errors: bool = True


NOTHING = Captures()


def look_up(tree: tree_sitter.Tree, contexts: ContextQuery, tip: int, width: int, left: int) -> Captures:
    """Return the captures around the placeholder at `tip`, which is `width` bytes long.

    `left` is the end of the last token before it. The look-up is left-biased: at the end of a line, the node at the tip
    itself is an outer block or the next token.
    """
    import tree_sitter

    root = tree.root_node
    cursor = tree_sitter.QueryCursor(contexts.query, match_limit=MATCH_LIMIT)
    cursor.set_byte_range(max(0, left - 1), tip + width)
    inside: tuple[int, int, int] | None = None
    around: Context | None = None
    token: tuple[int, Context] | None = None
    ended: Context | None = None
    error = _error_around(root, tip, width)
    for pattern, captures in cursor.matches(root):
        for name, nodes in captures.items():
            for node in nodes:
                start, end = node.start_byte, node.end_byte
                if start <= tip and end >= tip + width:
                    key = (end - start, -pattern, 0)
                    if inside is None or key < inside:
                        inside, around = key, Context(name)
                elif end == left and start < left:
                    context = Context(name)
                    if context not in OF_LAST_TOKEN:
                        ended = context
                    elif token is None or pattern >= token[0]:
                        token = (pattern, context)
    clean = error is None or (inside is not None and inside[0] < error)
    return Captures(around, token[1] if token else None, ended, clean, root.has_error)


def _error_around(root: tree_sitter.Node, tip: int, width: int) -> int | None:
    """Return the size in bytes of the smallest error node around the placeholder, or None."""
    if not root.has_error:
        return None
    sizes = [node.end_byte - node.start_byte for node in nodes_around(root, tip, tip + width) if node.is_error]
    return sizes[-1] if sizes else None


def nodes_around(root: tree_sitter.Node, start: int, end: int) -> Iterator[tree_sitter.Node]:
    """Yield the nodes that contain a range, outermost first.

    Descends from the root once, because tree-sitter finds a node's parent by descending from the root each time.
    """
    cursor = root.walk()
    node: tree_sitter.Node | None = root
    while node is not None and node.start_byte <= start and node.end_byte >= end:
        yield node
        node = cursor.node if cursor.goto_first_child_for_byte(start) is not None else None
