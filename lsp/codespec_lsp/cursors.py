"""What is known about the cursor: its context, what is open there, the indent. Knows codespec_grammars and what a whole
file's tree adds to its windows; knows no documents.
"""

from __future__ import annotations

from codespec_grammars import Context, ContextTracker, Cursor
from codespec_grammars.contexts import TEXT_LIKE
from codespec_grammars.lexed import LexedText
from codespec_grammars.registry import Grammar, load_grammar
from codespec_grammars.window import kept_from

from codespec_lsp.tree import SyntaxTree

MOST_AFTER = 8192  # characters to the right; the tracker looks at less


def find_cursor(
    language: str, prefix: str, suffix: str, tree: SyntaxTree | None = None, bytes_before: int = 0
) -> Cursor:
    """The facts about the cursor between prefix and suffix. `bytes_before` of the file stand before the prefix, which
    only the tree has seen."""
    grammar = load_grammar(language) if language else None
    if not isinstance(grammar, Grammar):
        return Cursor()
    data = prefix.encode()
    own = ContextTracker(language, data, suffix[:MOST_AFTER].encode()).context()
    if tree is None:
        return own
    window = bytes_before + kept_from(len(data)) + LexedText(grammar.rules, data).start
    outside = tree.outside(bytes_before + len(data), window)
    context = own.context
    if outside.text is not None and own.context not in TEXT_LIKE:
        context = outside.text
    brackets = outside.brackets + ("" if _is_text(context) and context != own.context else own.open_brackets)
    return Cursor(context, brackets, own.indent, own.language)


def _is_text(context: Context) -> bool:
    return context in TEXT_LIKE
