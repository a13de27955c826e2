"""Read and outline files in a process made by the fork server. Does not check whether a file may be sent."""

from __future__ import annotations

from pathlib import Path

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.registry import Grammar, load_grammar

from codespec.regular_file import read_regular
from codespec_lsp.outlines import outline

MOST_BYTES = 128 << 10  # of one file


class OutlineService:
    """Reads the outlines of files."""

    SECONDS = 2.0  # CPU time
    MEMORY = 256 << 20

    def __init__(self, language: str) -> None:
        """Ignore the language, which is found from each file's name."""

    def answer(self, path: str) -> str:
        """Return the heads of a file's definitions."""
        return read_outline(Path(path))


def read_outline(path: Path) -> str:
    """Return the heads of a file's definitions, or "" if it can't be read, is too long, or has no known language."""
    language = find_language(path=str(path))
    grammar = load_grammar(language) if language else None
    if not isinstance(grammar, Grammar):
        return ""
    try:
        source = read_regular(path, MOST_BYTES)
    except (OSError, ValueError):
        return ""
    text = outline(tree_sitter.Parser(grammar.language).parse(source).root_node, source)
    return "" if "\0" in text else text
