"""What is known about the cursor: its context, what is open there, the indent. Knows codespec_grammars and what a whole
file's tree adds to its windows; knows no documents.
"""

from __future__ import annotations

from codespec_grammars import Context, ContextTracker, Cursor
from codespec_grammars.contexts import TEXT_LIKE
from codespec_grammars.registry import Grammar, load_grammar
from codespec_grammars.window import kept_from

from codespec_lsp.tree import SyntaxTree

MOST_AFTER = 8192  # characters to the right; the tracker looks at less
MOST_FOLLOWED = 4096  # bytes that are typed on before a tracker is made anew


class Cursors:
    """Finds the facts about cursors; follows the text of each document, so that typing on costs what is new in it."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def find(
        self,
        document: str,
        language: str,
        prefix: str,
        suffix: str,
        tree: SyntaxTree | None = None,
        bytes_before: int = 0,
    ) -> Cursor:
        """The facts about the cursor between prefix and suffix. `bytes_before` of the file stand before the prefix,
        which only the tree has seen."""
        grammar = load_grammar(language) if language else None
        if not isinstance(grammar, Grammar):
            return Cursor()
        data = prefix.encode()
        followed = self._follow(document, language, data, suffix[:MOST_AFTER].encode())
        own = followed.tracker.context()
        if tree is None:
            return own
        outside = tree.outside(bytes_before + len(data), bytes_before + followed.seen_from)
        context = own.context
        if outside.text is not None and own.context not in TEXT_LIKE:
            context = outside.text
        brackets = outside.brackets + ("" if _is_text(context) and context != own.context else own.open_brackets)
        return Cursor(context, brackets, own.indent, own.language)

    def forget(self, document: str) -> None:
        """The document is gone."""
        self._followed.pop(document, None)

    def _follow(self, document: str, language: str, prefix: bytes, suffix: bytes) -> _Followed:
        followed = self._followed.get(document)
        if followed is None or not followed.leads_to(language, prefix, suffix):
            followed = self._followed[document] = _Followed(language, prefix, suffix)
        followed.go_to(prefix)
        return followed


class _Followed:
    """A tracker of one text, and what was appended to it."""

    def __init__(self, language: str, prefix: bytes, suffix: bytes) -> None:
        self.tracker = ContextTracker(language, prefix, suffix)
        self._language, self._prefix, self._suffix = language, prefix, suffix
        self._appended = b""

    @property
    def seen_from(self) -> int:
        """The first byte of the text that the tracker looks at."""
        lexed = self.tracker.lexed
        return kept_from(len(self._prefix)) + (lexed.start if lexed else 0)

    def leads_to(self, language: str, prefix: bytes, suffix: bytes) -> bool:
        """Whether another text is this one with something appended."""
        near = 0 <= len(prefix) - len(self._prefix) <= MOST_FOLLOWED
        return near and (language, suffix) == (self._language, self._suffix) and prefix.startswith(self._prefix)

    def go_to(self, prefix: bytes) -> None:
        """Appends and takes back what makes it that text."""
        before, appended = self._appended, prefix[len(self._prefix) :]
        if not appended.startswith(before):
            before = appended if before.startswith(appended) else b""
            self.tracker.rollback(len(before))
        self.tracker.advance(appended[len(before) :])
        self._appended = appended


def _is_text(context: Context) -> bool:
    return context in TEXT_LIKE
