"""Grammar knowledge as data, one folder a language: in which syntactic context does a text's tip lie?

A leaf: knows tree-sitter and the folders beside this file; imports neither codespec nor the language server, and does
not know what a context is used for. `ContextTracker` follows a text that grows at its tip; adding a language is adding
a folder with `language.toml` and `contexts.scm`.
"""

from codespec_grammars.contexts import Context
from codespec_grammars.cursor import Cursor, CursorError
from codespec_grammars.data_error import GrammarDataError
from codespec_grammars.registry import find_language, language_names
from codespec_grammars.tracker import ContextTracker

__all__ = [
    "Context",
    "ContextTracker",
    "Cursor",
    "CursorError",
    "GrammarDataError",
    "find_language",
    "language_names",
]
