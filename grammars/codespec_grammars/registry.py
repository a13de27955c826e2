"""List the languages and load their grammars.

tree-sitter and a grammar's wheel are imported on first use. An unknown language or a missing package gives a note, not
an error.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from codespec_grammars.language import Language, load_language
from codespec_grammars.lexer_rules import LexerRules, compile_rules
from codespec_grammars.queries import ContextQuery, compile_contexts

if TYPE_CHECKING:
    import tree_sitter

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that can be parsed: its data, tree-sitter grammar, context query and lexer rules."""

    data: Language
    language: tree_sitter.Language
    contexts: ContextQuery
    rules: LexerRules


@dataclass(frozen=True, slots=True)
class Missing:
    """A language without a grammar. `note` gives the reason in one sentence."""

    note: str


@cache
def languages() -> dict[str, Language]:
    """Return all languages by name: one for each folder beside this file with a `language.toml`."""
    return {path.parent.name: load_language(path.parent) for path in sorted(FOLDER.glob("*/language.toml"))}


def language_names() -> tuple[str, ...]:
    """Return the names of all languages, sorted."""
    return tuple(languages())


def find_language(language_id: str = "", path: str = "") -> str:
    """Return the name of the language with that editor language id, else of the file name, or "" if unknown."""
    for data in languages().values():
        if language_id and language_id in (data.name, *data.ids):
            return data.name
    file = PurePath(path).name
    for data in languages().values():
        if any(fnmatchcase(file, glob) for glob in data.files):
            return data.name
    return ""


@cache
def load_grammar(language: str) -> Grammar | Missing:
    """Load the grammar for a language name or id. Raises GrammarDataError only if this package's data is invalid."""
    name = find_language(language)
    if not name:
        return Missing(f"no grammar for the language {language!r}: the context is unknown")
    data = languages()[name]
    try:
        import tree_sitter
    except ImportError:
        return Missing("tree-sitter is not installed (pip install tree-sitter): the context is unknown")
    try:
        module = importlib.import_module(data.module)
    except ImportError:
        wheel = data.module.replace("_", "-")
        return Missing(f"the grammar of {name} is not installed (pip install {wheel}): the context is unknown")
    try:
        grammar = tree_sitter.Language(getattr(module, data.function)())
    except ValueError as error:
        return Missing(
            f"the installed grammar of {name} does not fit this tree-sitter ({error}): the context is unknown"
        )
    return Grammar(data, grammar, compile_contexts(grammar, data.folder), compile_rules(data))
