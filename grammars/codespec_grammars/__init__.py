"""Find the syntactic context at the tip of a text, using one folder of grammar data for each language.

Depends on tree-sitter only, not on codespec or the language server. `ContextTracker` follows a text that grows at its
tip. To add a language, add a folder with a `language.toml` and a `contexts.scm`.
"""

from codespec_grammars.ending import CodeEnd, Cut, Scope
from codespec_grammars.grammar import Context
from codespec_grammars.language import GrammarDataError, Place, find_language, find_place, language_names
from codespec_grammars.surroundings import Surroundings, only_closer_missing, read_surroundings
from codespec_grammars.tracker import ContextTracker, Cursor, CursorError

__all__ = [
    "CodeEnd",
    "Context",
    "ContextTracker",
    "Cursor",
    "CursorError",
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
