"""Definitions of the files that a file imports, as the language server adds them to a prompt."""

from __future__ import annotations

from pathlib import Path

from codespec_lsp.imports import MOST_CHARACTERS, find_imported, import_rows
from codespec_lsp.syntax_tree import read_outline

from codespec.contract.types import Snippet


def read_definitions(text: str, path: Path, root: Path) -> tuple[Snippet, ...]:
    """Return at most MOST_CHARACTERS of definitions for a file with this text at `path`, whole files below `root`
    only.
    """
    found, left = [], MOST_CHARACTERS
    for imported in find_imported(import_rows(text.split("\n")), path, root):
        outline = read_outline(imported)
        if outline and len(outline) <= left:
            left -= len(outline)
            found.append(Snippet(imported.relative_to(root).as_posix(), outline))
    return tuple(found)
