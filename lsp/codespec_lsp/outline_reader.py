"""What files define, read and parsed in a process that the fork server made. Knows files and grammars; knows no rules
and no documents.
"""

from __future__ import annotations

from pathlib import Path

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.registry import Grammar, load_grammar

from codespec.regular_file import read_regular
from codespec_lsp.outlines import outline

SECONDS = 2.0  # of the processor
MEMORY = 256 << 20
MOST_BYTES = 128 << 10  # of a file


class Service:
    """Reads files, each in a process for its language."""

    def __init__(self, language: str) -> None:
        """A file says itself which language it is of."""

    def answer(self, path: str) -> str:
        """The heads of what a file defines."""
        return read_outline(Path(path))


def read_outline(path: Path) -> str:
    """The heads of what a file defines; "" for one that can't be read, is too long, or of no language that is known."""
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
