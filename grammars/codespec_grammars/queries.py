"""Reading a language's `contexts.scm`. Knows the closed vocabulary of captures, the predicates that tree-sitter really
evaluates, and `; inherits: x, y` on the first line; does not run a query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import tree_sitter

from codespec_grammars.contexts import NAMES, Context
from codespec_grammars.data_error import GrammarDataError

# tree-sitter takes an unknown predicate as true, so that the pattern captures everything: refused instead.
PREDICATES = re.compile(r"(?:not-)?(?:any-)?(?:eq|match)\?|(?:not-)?any-of\?|set!|is(?:-not)?\?")
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|@([\w.-]+)|#([\w.-]+[?!]?)')
_INHERITS = re.compile(r";+\s*inherits:\s*([\w, -]+)\s*\n")
_ROW = re.compile(r"row (\d+)")


@dataclass(frozen=True, slots=True)
class ContextQuery:
    """A compiled query. Where two patterns capture one node, the later pattern holds."""

    query: tree_sitter.Query
    source: str


def compile_contexts(language: tree_sitter.Language, folder: Path) -> ContextQuery:
    """Compiles `folder/contexts.scm` with what it inherits in front. Raises GrammarDataError with file and line."""
    sources = _with_inherited(folder / "contexts.scm", ())
    for path, source in sources:
        _check(path, source)
        _compile(language, path, source)  # alone first, so that an error's row is the file's own
    whole = "\n".join(source for _, source in sources)
    return ContextQuery(_compile(language, sources[-1][0], whole), whole)


def _with_inherited(path: Path, above: tuple[Path, ...]) -> list[tuple[Path, str]]:
    source = path.read_text(encoding="utf-8")
    if path in above:
        raise GrammarDataError(path, 1, "this file inherits from itself")
    found = _INHERITS.match(source)
    sources: list[tuple[Path, str]] = []
    for name in found[1].replace(" ", "").split(",") if found else []:
        parent = path.parent.parent / name / path.name
        if not parent.is_file():
            raise GrammarDataError(path, 1, f"inherits from {name!r}, which has no {path.name}")
        sources.extend(item for item in _with_inherited(parent, (*above, path)) if item not in sources)
    return [*sources, (path, source)]


def _check(path: Path, source: str) -> None:
    for token in _TOKEN.finditer(source):
        line = source.count("\n", 0, token.start()) + 1
        if token[1] and token[1] not in NAMES:
            raise GrammarDataError(path, line, f"@{token[1]} is no context; use one of {', '.join(Context)}")
        if token[2] and not PREDICATES.fullmatch(token[2]):
            raise GrammarDataError(path, line, f"#{token[2]} is no predicate that tree-sitter evaluates")


def _compile(language: tree_sitter.Language, path: Path, source: str) -> tree_sitter.Query:
    try:
        return tree_sitter.Query(language, source)
    except tree_sitter.QueryError as error:
        row = _ROW.search(str(error))
        raise GrammarDataError(path, int(row[1]) + 1 if row else 1, str(error)) from error
