"""What syntax says about a document's cursor: its context, the open brackets, the indent.

A `ContextTracker` looks at a window around the cursor. The tree of the whole file, which a process of its own holds,
adds what was opened too far above to be in that window. If a text breaks that process, or takes too much of its time or
memory, the document goes on without a tree until it is opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from codespec_grammars import Context, ContextTracker, Cursor, look_ups
from codespec_grammars.contexts import TEXT_LIKE
from codespec_grammars.registry import Grammar, load_grammar
from codespec_grammars.window import kept_from
from codespec_grammars.workers import Worker, WorkerDied

from codespec_lsp.buffer import Edit
from codespec_lsp.syntax_tree import Change, Outside

TREE_AFTER = 0.03  # seconds after a change: the answer goes first
MOST_AFTER = 8192  # characters to the right; the tracker looks at less
MOST_APPENDED = 4096  # bytes that are typed on before a tracker is made anew
SERVICE = "codespec_lsp.syntax_tree"
PARSING = 30.0  # seconds for a parse, which the process bounds itself in its own time
ASKING = 0.2  # seconds for a question to a process that waits for one; it takes some ten thousandths
MOST_LOST = 3  # processes that a document may lose over questions
MOST_CHANGED = 1 << 16  # characters of changes that may go along with a question
MOST_TREES = 4  # documents that have one at the same time


class DocumentSyntax:
    """The syntax of one document, whose text is what `read` returns; `language` is a grammar's name, "" for none.
    `report` is called if its tree is given up."""

    def __init__(self, language: str, read: Callable[[], str], trees: Trees, report: Callable[[], None]) -> None:
        parsed = language if isinstance(load_grammar(language) if language else None, Grammar) else ""
        if parsed:
            look_ups.prepare(parsed)
        self._cursors = CursorFinder(parsed)
        self._tree = DocumentTree(parsed, read, trees, report)
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_soon()

    def edited(self, edit: Edit) -> None:
        """The document changed. The tree is parsed in a moment."""
        self._tree.edited(edit)
        self._refresh_soon()

    @property
    def parsed(self) -> int:
        """How many times the document was parsed to its end: an outline is of the last one."""
        return self._tree.parsed

    def outline(self) -> str:
        """The heads of what the document defines, as of its last parse; "" before the first."""
        return self._tree.outline

    def close(self) -> None:
        """The document is gone."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._tree.close()

    def find_cursor(self, prefix: str, suffix: str, bytes_before: int, in_document: bool) -> Cursor:
        """The facts about the cursor between prefix and suffix. The tree helps where both are `in_document`."""
        return self._cursors.find(prefix, suffix, self._tree if in_document else None, bytes_before)

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        await asyncio.sleep(TREE_AFTER)
        await self._tree.refresh()


class DocumentTree:
    """The tree of one document, in its process."""

    def __init__(self, language: str, read: Callable[[], str], trees: Trees, report: Callable[[], None]) -> None:
        self._language, self._read, self._trees, self._report = language, read, trees, report
        self._worker: Worker | None = None
        self._changes: list[Change] = []  # that the process has not taken
        self._lost = 0
        self.parsing = self.broken = self.fresh = False
        self.parsed = 0
        self.outline = ""

    def edited(self, edit: Edit) -> None:
        """Takes an edit, in order. Without a process nobody ever applies it, so it is dropped."""
        self.fresh = False
        if self._worker is not None:
            self._changes.append(Change(edit.start, len(edit.removed), edit.text))

    async def refresh(self) -> None:
        """Has the text parsed, again if an edit comes in between. If the parse breaks the process, there is no more."""
        while self._language and not self.broken and not self.fresh:
            self._trees.hold(self)
            self.parsing = self.fresh = True
            try:
                opened = self._worker is None
                worker = self._worker = self._worker or Worker(SERVICE, self._language)
                request = {"text": self._read()} if opened else {"changes": self._changes}
                self._changes = []
                self.outline = await worker.ask_beside(request, PARSING)
                self.parsed += 1
            except WorkerDied:
                self._break()
            finally:
                self.parsing = False

    def outside(self, tip: int, seen_from: int) -> Outside:
        """What was opened before `seen_from` and is still open at `tip`, both in bytes; nothing while it is parsed."""
        worker = self._worker
        if worker is None or self.parsing or sum(len(change.text) for change in self._changes) > MOST_CHANGED:
            return Outside()
        changes, self._changes = self._changes, []
        try:
            return Outside(*worker.ask({"changes": changes, "outside": (tip, seen_from)}, ASKING))
        except WorkerDied:
            self._lost += 1
            self.release()
            if self._lost == MOST_LOST:
                self._break()
            return Outside()

    def release(self) -> None:
        """Gives the process up; the next parse starts another. The outline stays."""
        if self._worker is not None and not self.parsing:  # else whoever waits for it ends it, once cancelled
            self._worker.close()
        self._worker, self.fresh = None, False
        self._changes.clear()

    def close(self) -> None:
        """The document is gone, and nothing parses it."""
        self._trees.drop(self)
        self.release()

    def _break(self) -> None:
        self.broken, self.outline = True, ""
        self.parsed += 1  # the outline is another
        self.close()
        self._report()


class Trees:
    """The documents whose trees are held in processes, the one that was parsed last at the end."""

    def __init__(self) -> None:
        self._held: list[DocumentTree] = []

    def hold(self, tree: DocumentTree) -> None:
        """Takes a tree; if there are too many, the oldest one is released."""
        self.drop(tree)
        idle = [each for each in self._held if not each.parsing]
        for oldest in idle[: max(0, len(self._held) + 1 - MOST_TREES)]:
            self.drop(oldest)
            oldest.release()
        self._held.append(tree)

    def drop(self, tree: DocumentTree) -> None:
        """Forgets a tree."""
        self._held = [each for each in self._held if each is not tree]


class Surrounding(Protocol):
    """What knows more of a document than a window shows."""

    def outside(self, tip: int, seen_from: int) -> Outside:
        """What was opened before `seen_from` and is still open at `tip`, both in bytes."""
        ...


class CursorFinder:
    """Finds the facts about the cursor in one document. It follows the text, so that typing on costs what is new.
    `language` is one with a grammar, or ""."""

    def __init__(self, language: str) -> None:
        self._language = language
        self._followed: _FollowedText | None = None

    def find(self, prefix: str, suffix: str, tree: Surrounding | None = None, bytes_before: int = 0) -> Cursor:
        """The facts about the cursor between prefix and suffix. `bytes_before` of the file stand before the prefix;
        only the tree has seen them."""
        if not self._language:
            return Cursor()
        data = prefix.encode()
        followed = self._follow(data, suffix[:MOST_AFTER].encode())
        own = followed.tracker.context()
        if tree is None:
            return own
        outside = tree.outside(bytes_before + len(data), bytes_before + followed.seen_from)
        if outside.text is None or own.context in TEXT_LIKE:
            return Cursor(own.context, outside.brackets + own.open_brackets, own.indent, own.language)
        return Cursor(Context(outside.text), outside.brackets, own.indent, own.language)

    def _follow(self, prefix: bytes, suffix: bytes) -> _FollowedText:
        if self._followed is None or not self._followed.leads_to(prefix, suffix):
            self._followed = _FollowedText(self._language, prefix, suffix)
        self._followed.go_to(prefix)
        return self._followed


class _FollowedText:
    """A tracker of one text, and what was appended to it."""

    def __init__(self, language: str, prefix: bytes, suffix: bytes) -> None:
        self.tracker = ContextTracker(language, prefix, suffix)
        self._prefix, self._suffix = prefix, suffix
        self._appended = b""

    @property
    def seen_from(self) -> int:
        """The first byte of the text that the tracker looks at."""
        lexed = self.tracker.lexed
        return kept_from(len(self._prefix)) + (lexed.start if lexed else 0)

    def leads_to(self, prefix: bytes, suffix: bytes) -> bool:
        """Whether another text is this one with something appended."""
        near = 0 <= len(prefix) - len(self._prefix) <= MOST_APPENDED
        return near and suffix == self._suffix and prefix.startswith(self._prefix)

    def go_to(self, prefix: bytes) -> None:
        """Appends and takes back what makes it that text."""
        before, appended = self._appended, prefix[len(self._prefix) :]
        if not appended.startswith(before):
            before = appended if before.startswith(appended) else b""
            self.tracker.rollback(len(before))
        self.tracker.advance(appended[len(before) :])
        self._appended = appended
