"""Grammar knowledge as data, one folder a language: in which syntactic context does a text's tip lie?

A leaf: knows tree-sitter and the folders beside this file; imports neither codespec nor the language server, and does
not know what a context is used for. `ContextTracker` follows a text that grows at its tip; adding a language is adding
a folder with `language.toml` and `contexts.scm`.
"""

from codespec_grammars.contexts import Context, Cursor, CursorError
from codespec_grammars.ending import CodeEnd, Cut, Scope
from codespec_grammars.language import GrammarDataError
from codespec_grammars.registry import find_language, language_names
from codespec_grammars.surroundings import Surroundings, only_closer_missing, read_surroundings
from codespec_grammars.tracker import ContextTracker

__all__ = [
    "CodeEnd",
    "Context",
    "ContextTracker",
    "Cursor",
    "CursorError",
    "Cut",
    "GrammarDataError",
    "Scope",
    "Surroundings",
    "find_language",
    "language_names",
    "only_closer_missing",
    "read_surroundings",
]
