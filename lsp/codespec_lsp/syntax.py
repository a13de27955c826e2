"""Find the context, open brackets and indent at a document's cursor.

A `ContextTracker` reads a window around the cursor, anew for each request (1 to 2 ms). The tree of the whole file, held
in a separate process, adds brackets that were opened above that window. If a text breaks that process or exceeds its
time or memory limit, the document has no tree until it is opened again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from codespec_grammars import Context, ContextTracker, Cursor, Place
from codespec_grammars.contexts import TEXT_LIKE
from codespec_grammars.grammar import load_grammar
from codespec_grammars.window import kept_from
from codespec_grammars.workers import Worker, WorkerDied, prepare

from codespec_lsp.buffer import Edit
from codespec_lsp.name_scopes import SameName
from codespec_lsp.outline import Outline, received
from codespec_lsp.syntax_tree import Change, Outside

TREE_AFTER = 0.03  # seconds to wait after a change: the completion is answered first
AFRESH_AFTER = 2.0  # seconds without a change, after which a document is parsed from its text alone
MAX_AFTER = 8192  # characters of the suffix; the tracker uses fewer
RETRY_S = 10.0  # seconds without parsing windows of a document, after a text that broke the parser
SERVICE = "codespec_lsp.syntax_tree:TreeService"
PARSING = 30.0  # wall-clock seconds for a parse; the process also limits its own CPU time
ASKING = 0.2  # seconds for a request to an idle process; it takes less than a millisecond
RENAMING = 1.0  # the same for a renamed name, whose text may have to be parsed first
MAX_LOST = 3  # processes that a document may lose to failed requests
MAX_CHANGED = 1 << 16  # characters of changes that a request may carry
MAX_TREES = 4  # documents with a tree at the same time


class DocumentSyntax:
    """The syntax of one document.

    `read` returns the document's text, `language` is a grammar's name or "". `locate` finds the language at a cursor,
    from the text before and after it. `report` is called if the tree is given up.
    """

    def __init__(
        self,
        language: str,
        locate: Callable[[bytes, bytes], Place],
        read: Callable[[], str],
        trees: Trees,
        report: Callable[[], None],
    ) -> None:
        parsed = language if load_grammar(language) is not None else ""
        if parsed:
            prepare(parsed)
        self._locate = locate
        self._parse_from = 0.0  # time after which windows are parsed again
        self.tree = DocumentTree(parsed, read, trees, report)
        self._refreshing: asyncio.Task[None] | None = None
        self._at_rest: asyncio.TimerHandle | None = None
        self._refresh_soon()

    def edited(self, edit: Edit) -> None:
        """Apply an edit and schedule a parse."""
        self.tree.edited(edit)
        self._refresh_soon()

    def close(self) -> None:
        """Release the tree of a closed document."""
        if self._at_rest is not None:
            self._at_rest.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
        self.tree.close()

    def find_cursor(self, prefix: str, suffix: str, bytes_before: int, in_document: bool) -> Cursor:
        """Return the cursor between prefix and suffix. The tree is used only if both are `in_document`."""
        place, now = self._locate(prefix.encode(), suffix[:MAX_AFTER].encode()), time.monotonic()
        tracker = ContextTracker(place.language, place.prefix, place.suffix)
        tree = self.tree if in_document and not place.inside else None
        cursor = find_cursor(tracker, place.prefix, tree, bytes_before, parse=now >= self._parse_from)
        if tracker.broke_parser:
            self._parse_from = now + RETRY_S
        return cursor

    async def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the other places of a renamed name, as `DocumentTree.same_name`, once the text is parsed."""
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])  # which cancelling this does not cancel
        return await self.tree.same_name(old, new, renamed)

    def _refresh_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._at_rest is not None:
            self._at_rest.cancel()
        self._at_rest = loop.call_later(AFRESH_AFTER, self._parse_afresh)
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = loop.create_task(self._refresh())

    def _parse_afresh(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self.tree.parse_afresh())

    async def _refresh(self) -> None:
        await asyncio.sleep(TREE_AFTER)
        await self.tree.refresh()


class DocumentTree:
    """The tree of one document, held in a worker process.

    `parsed` is the number of completed parses. `outline` holds the heads of the document's definitions as of the last
    one, and nothing before the first.
    """

    def __init__(self, language: str, read: Callable[[], str], trees: Trees, report: Callable[[], None]) -> None:
        self._language, self._read, self.trees, self._report = language, read, trees, report
        self._worker: Worker | None = None
        self._changes: list[Change] = []  # not sent to the process yet
        self._lost = 0
        self.parsing = self.broken = self.fresh = False
        self._incremental = self._afresh = False
        self.parsed = 0
        self.outline: Outline = []
        self._turn = asyncio.Lock()  # the process handles one request at a time

    def edited(self, edit: Edit) -> None:
        """Queue an edit. Without a process it is dropped, because a new process starts from the whole text."""
        self.fresh = False
        if self._worker is not None:
            self._changes.append(Change(edit.start, len(edit.removed), edit.text))

    async def refresh(self) -> None:
        """Parse the text until no edit came in between. If a parse breaks the process, give up the tree."""
        while self._language and not self.broken and not self.fresh:
            async with self._turn:
                await self._parse()

    async def _parse(self) -> None:
        self.trees.hold(self)
        self.parsing = self.fresh = True
        try:
            opened = self._worker is None
            worker = self._worker = self._worker or Worker(SERVICE, self._language)
            afresh, self._afresh = self._afresh, False
            request = {"text": self._read()} if opened else {"changes": self._changes, "afresh": afresh}
            self._changes = []
            self._incremental = not opened and not afresh
            self.outline = received(await worker.ask_beside(request, PARSING))
            self.parsed += 1
        except WorkerDied:
            self._break()
        finally:
            self.parsing = False

    async def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the other places of a name that is `new` at the `renamed` offsets, in code points.

        None if the text has no tree or the name none.
        """
        async with self._turn:
            worker = self._worker
            if worker is None or sum(len(change.text) for change in self._changes) > MAX_CHANGED:
                return None
            self.parsing, changes, self._changes, answered = True, self._changes, [], False
            try:
                answer = await worker.ask_beside({"changes": changes, "rename": (old, new, renamed)}, RENAMING)
                answered = True
            except WorkerDied:
                self._lost += 1
                return None
            finally:
                self.parsing = False
                if not answered:  # the process has ended, also if this was cancelled
                    self.release()
                elif self._worker is not worker:  # the document was closed
                    worker.close()
        return SameName(*answer) if answer is not None else None

    async def parse_afresh(self) -> None:
        """Replace an incremental tree by one that is parsed from the text alone."""
        if self._worker is not None and self._incremental:
            self.fresh, self._afresh = False, True
            await self.refresh()

    def outside(self, tip: int, seen_from: int) -> Outside:
        """Return what was opened before `seen_from` and is still open at `tip`, both byte offsets.

        The result is empty during a parse.
        """
        worker = self._worker
        if worker is None or self.parsing or sum(len(change.text) for change in self._changes) > MAX_CHANGED:
            return Outside()
        changes, self._changes = self._changes, []
        try:
            return Outside(*worker.ask({"changes": changes, "outside": (tip, seen_from)}, ASKING))
        except WorkerDied:
            self._lost += 1
            self.release()
            if self._lost >= MAX_LOST:
                self._break()
            return Outside()

    def release(self) -> None:
        """Release the process and keep the outline. The next parse starts another process."""
        if self._worker is not None and not self.parsing:  # during a parse, cancelling the parse closes it
            self._worker.close()
        self._worker, self.fresh = None, False
        self._changes.clear()

    def close(self) -> None:
        """Release the tree of a closed document. No parse may be running."""
        self.trees.drop(self)
        self.release()

    def _break(self) -> None:
        self.broken, self.outline = True, []
        self.parsed += 1  # the outline has changed
        self.close()
        self._report()


class Trees:
    """The trees that are held in processes, the last one parsed at the end."""

    def __init__(self) -> None:
        self._held: list[DocumentTree] = []

    def hold(self, tree: DocumentTree) -> None:
        """Add a tree. If there are too many, release the oldest ones."""
        self.drop(tree)
        idle = [each for each in self._held if not each.parsing]
        for oldest in idle[: max(0, len(self._held) + 1 - MAX_TREES)]:
            self.drop(oldest)
            oldest.release()
        self._held.append(tree)

    def drop(self, tree: DocumentTree) -> None:
        """Remove a tree."""
        self._held = [each for each in self._held if each is not tree]


def find_cursor(
    tracker: ContextTracker, prefix: bytes, tree: DocumentTree | None, bytes_before: int, *, parse: bool = True
) -> Cursor:
    """Return the cursor at the end of a prefix, whose last bytes are the tracker's window.

    `bytes_before` is the number of bytes of the file before the prefix, which only the tree covers.
    """
    own, lexed = tracker.context(parse=parse), tracker.lexed
    if tree is None or lexed is None:
        return own
    window = bytes_before + kept_from(len(prefix)) + lexed.start
    outside = tree.outside(bytes_before + len(prefix), window)
    if outside.text is None or own.context in TEXT_LIKE:
        return Cursor(own.context, outside.brackets + own.open_brackets, own.indent, own.language)
    return Cursor(Context(outside.text), outside.brackets, own.indent, own.language)
