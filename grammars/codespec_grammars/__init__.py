"""Find the syntactic context at a cursor and the end of a completion there, using a folder of data for each language.

This package depends on tree-sitter only, not on codespec. README.md explains how to add a language.
"""

from codespec_grammars.ending import CodeEnd, Cut, Scope
from codespec_grammars.grammar import Context
from codespec_grammars.language import GrammarDataError, Place, find_language, find_place, language_names
from codespec_grammars.surroundings import Surroundings, only_closer_missing, read_surroundings
from codespec_grammars.tracker import ContextTracker, Cursor

__all__ = [
    "CodeEnd",
    "Context",
    "ContextTracker",
    "Cursor",
    "Cut",
    "GrammarDataError",
    "Place",
    "Scope",
    "Surroundings",
    "find_language",
    "find_place",
    "language_names",
    "only_closer_missing",
    "read_surroundings",
]
