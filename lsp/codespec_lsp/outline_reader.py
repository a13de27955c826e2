"""`python -m codespec_lsp.outline_reader`: what files define, one line of JSON for each path on stdin.

A process of its own, since a few kilobytes that were made for it keep a grammar busy for a minute, and nothing in this
one runs meanwhile: whoever started it stops it in time. Knows files and grammars; knows no rules and no documents.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tree_sitter
from codespec_grammars import find_language
from codespec_grammars.registry import Grammar, load_grammar

from codespec.bounded_json import parse_json
from codespec.regular_file import read_regular
from codespec_lsp.outlines import outline

MOST_BYTES = 128 << 10  # of a file


def main() -> None:
    """Reads paths to the end of the input, and answers each at once."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(read_outline(Path(parse_json(line.encode())))) + "\n")
        sys.stdout.flush()


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


if __name__ == "__main__":
    main()
