"""Find the context, open brackets and indent at a document's cursor.

For each request, a `ContextTracker` reads a window around the cursor in 1 to 2 ms. The tree of the whole file, in a
worker process, supplies the brackets opened above the window and the document's outline. If a text crashes the process
or exceeds its limits, the document has no tree until the user reopens it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import tree_sitter
from codespec_grammars import Context, ContextTracker, Cursor, find_place
from codespec_grammars.grammar import TEXT_LIKE, load_grammar, nodes_around
from codespec_grammars.language import load_name_facts
from codespec_grammars.lexer import kept_from
from codespec_grammars.workers import Worker, WorkerDied, prepare

from codespec_lsp.buffer import Edit
from codespec_lsp.name_scopes import SameName, find_same_name
from codespec_lsp.outline import Block, Outline, outline

if TYPE_CHECKING:
    from codespec_lsp.documents import Document

PARSE_DELAY_S = 0.03  # seconds from a change to a parse: the completion is answered first
FULL_PARSE_DELAY_S = 2.0  # seconds without a change before a parse that does not reuse the old tree
MAX_AFTER = 8192  # characters of the suffix; the tracker uses fewer
RETRY_S = 10.0  # seconds without parsing windows of a document, after a text that killed the parser
SERVICE = "codespec_lsp.syntax:SyntaxTree"
PARSE_TIMEOUT_S = 30.0  # wall-clock seconds for a parse; the process also limits its own CPU time
QUERY_TIMEOUT_S = 0.2  # seconds for a request to an idle process, which takes less than a millisecond
RENAME_TIMEOUT_S = 1.0  # seconds for a renamed name, whose text may have to be parsed first
MAX_LOST = 3  # processes of a document that may die from requests
MAX_CHANGED = 1 << 16  # characters of changes in a request
MAX_TREES = 4  # documents with a tree at the same time
MAX_BYTES = 4 << 20  # of a document with a tree
MAX_DEPTH = 400
FIRST_CHILDREN = 8  # children of a node that are searched for an opening bracket
PAIRS = {"(": ")", "[": "]", "{": "}"}
STRINGS = ("string", "template_string", "raw_string_literal", "string_literal", "heredoc_body")


class DocumentSyntax:
    """The syntactic state of one document. `report` is called if the document loses its tree."""

    def __init__(self, document: Document, trees: list[DocumentTree], report: Callable[[], None]) -> None:
        parsed = document.language if load_grammar(document.language) is not None else ""
        if parsed:
            prepare(parsed)
        self._document = document
        self._parse_from = 0.0  # monotonic time from which windows are parsed
        self.tree = DocumentTree(parsed, lambda: document.buffer.text, trees, report)
        loop = asyncio.get_running_loop()
        self._refreshing = loop.create_task(self._refresh())
        self._at_rest = loop.call_later(FULL_PARSE_DELAY_S, self._parse, self.tree.parse_afresh)

    def edited(self, edit: Edit) -> None:
        """Apply an edit and schedule a parse."""
        self.tree.edited(edit)
        self._at_rest.cancel()
        self._at_rest = asyncio.get_running_loop().call_later(FULL_PARSE_DELAY_S, self._parse, self.tree.parse_afresh)
        self._parse(self._refresh)

    def close(self) -> None:
        self._at_rest.cancel()
        self._refreshing.cancel()
        self.tree.close()

    def find_cursor(self, prefix: str, suffix: str, bytes_before: int, in_document: bool) -> Cursor:
        """Return the syntax at the cursor between two texts. The tree is used only if both texts are `in_document`."""
        texts, now = (prefix.encode(), suffix[:MAX_AFTER].encode()), time.monotonic()
        place = find_place(self._document.language_id, self._document.path, *texts)
        tracker = ContextTracker(place.language, place.prefix, place.suffix)
        tree = self.tree if in_document and not place.inside else None
        cursor = find_cursor(tracker, place.prefix, tree, bytes_before, parse=now >= self._parse_from)
        if tracker.broke_parser:
            self._parse_from = now + RETRY_S
        return cursor

    async def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the result of `DocumentTree.same_name` once the running parse has ended."""
        await asyncio.wait([self._refreshing])  # unlike `await`, a cancellation leaves the parse running
        return await self.tree.same_name(old, new, renamed)

    def _parse(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(work())

    async def _refresh(self) -> None:
        await asyncio.sleep(PARSE_DELAY_S)
        await self.tree.refresh()


class DocumentTree:
    """The tree of one document, held in a worker process.

    `parsed` is the number of completed parses, and `outline` is the outline after the last parse. `trees` lists all
    trees that have a worker process, in the order of their last parses.
    """

    def __init__(
        self, language: str, read: Callable[[], str], trees: list[DocumentTree], report: Callable[[], None]
    ) -> None:
        self._language, self._read, self._trees, self._report = language, read, trees, report
        self._worker: Worker | None = None
        self._changes: list[Change] = []  # changes that the process does not have yet
        self._lost = 0
        self.parsing = self.broken = self.fresh = False
        self._incremental = self._afresh = False
        self.parsed = 0
        self.outline: Outline = []
        self._turn = asyncio.Lock()  # the process handles one request at a time

    def edited(self, edit: Edit) -> None:
        """Queue an edit for the worker process if one exists, because a new process would start from the whole text."""
        self.fresh = False
        if self._worker is not None:
            self._changes.append(Change(edit.start, len(edit.removed), edit.text))

    async def refresh(self) -> None:
        """Parse the text, repeatedly if it is edited meanwhile. If a parse crashes the process, give up the tree."""
        while self._language and not self.broken and not self.fresh:
            async with self._turn:
                await self._parse()

    async def _parse(self) -> None:
        self._hold()
        self.parsing = self.fresh = True
        try:
            opened = self._worker is None
            worker = self._worker = self._worker or Worker(SERVICE, self._language)
            afresh, self._afresh = self._afresh, False
            request = {"text": self._read()} if opened else {"changes": self._changes, "afresh": afresh}
            self._changes = []
            self._incremental = not opened and not afresh
            self.outline = [Block(*each) for each in await worker.ask_beside(request, PARSE_TIMEOUT_S)]
            self.parsed += 1
        except WorkerDied:
            self._break()
        finally:
            self.parsing = False

    async def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the other occurrences of a name that became `new` at the `renamed` offsets, or None without a tree."""
        async with self._turn:
            worker = self._worker
            if worker is None or sum(len(change.text) for change in self._changes) > MAX_CHANGED:
                return None
            self.parsing, changes, self._changes, answered = True, self._changes, [], False
            try:
                answer = await worker.ask_beside({"changes": changes, "rename": (old, new, renamed)}, RENAME_TIMEOUT_S)
                answered = True
            except WorkerDied:
                self._lost += 1
                return None
            finally:
                self.parsing = False
                if not answered:  # the process has died, or this was cancelled, which ends the process
                    self.release()
                elif self._worker is not worker:  # the document was closed
                    worker.close()
        return SameName(*answer) if answer is not None else None

    async def parse_afresh(self) -> None:
        """Parse the whole text again if the current tree was parsed incrementally."""
        if self._worker is not None and self._incremental:
            self.fresh, self._afresh = False, True
            await self.refresh()

    def outside(self, tip: int, seen_from: int) -> Outside:
        """Return the result of `SyntaxTree.outside`, or an empty result during a parse or if the process fails."""
        worker = self._worker
        if worker is None or self.parsing or sum(len(change.text) for change in self._changes) > MAX_CHANGED:
            return Outside()
        changes, self._changes = self._changes, []
        try:
            return Outside(*worker.ask({"changes": changes, "outside": (tip, seen_from)}, QUERY_TIMEOUT_S))
        except WorkerDied:
            self._lost += 1
            self.release()
            if self._lost >= MAX_LOST:
                self._break()
            return Outside()

    def release(self) -> None:
        """End the worker process but keep the outline. The next parse starts another process."""
        if self._worker is not None and not self.parsing:  # during a parse, its cancellation ends the process
            self._worker.close()
        self._worker, self.fresh = None, False
        self._changes.clear()

    def close(self) -> None:
        """Release the tree of a closed document, after any running parse has been cancelled."""
        if self in self._trees:
            self._trees.remove(self)
        self.release()

    def _hold(self) -> None:
        """Move this tree to the end of `trees`, and release the oldest trees beyond MAX_TREES."""
        others = [each for each in self._trees if each is not self]
        idle = [each for each in others if not each.parsing]
        oldest = idle[: max(0, len(others) + 1 - MAX_TREES)]
        self._trees[:] = [*(each for each in others if each not in oldest), self]
        for each in oldest:
            each.release()

    def _break(self) -> None:
        self.broken, self.outline = True, []
        self.parsed += 1  # so that snippets with the old outline are renewed
        self.close()
        self._report()


def find_cursor(
    tracker: ContextTracker, prefix: bytes, tree: DocumentTree | None, bytes_before: int, *, parse: bool = True
) -> Cursor:
    """Use the tracker and the tree to find the cursor after a prefix that begins at byte `bytes_before` of the file."""
    own = tracker.context(parse=parse)
    if tree is None or tracker.lexed is None:
        return own
    window = bytes_before + kept_from(len(prefix)) + tracker.lexed.start
    outside = tree.outside(bytes_before + len(prefix), window)
    if outside.text is None or own.context in TEXT_LIKE:
        return Cursor(own.context, outside.brackets + own.open_brackets, own.indent)
    return Cursor(Context(outside.text), outside.brackets, own.indent)


class Change(NamedTuple):
    """A replacement of `removed` code points with `text` at the offset `start`, in code points of the old text."""

    start: int
    removed: int
    text: str


class Outside(NamedTuple):
    """The brackets that are open at a position, and the context if the position is in a comment or string."""

    brackets: str = ""
    text: str | None = None


class SyntaxTree:
    """The syntax tree of one document in a worker process, adjusted at each change and parsed on demand."""

    SECONDS = 5.0  # CPU time for a parse; 4 MB take less than one second
    MEMORY = 512 << 20  # the tree of 4 MB takes 300 MB

    def __init__(self, language: str, text: str = "") -> None:
        grammar = load_grammar(language)
        assert grammar is not None  # the client checked
        self._parser = tree_sitter.Parser(grammar.language)
        self._source = text.encode("utf-8", "replace")
        self._tree: tree_sitter.Tree | None = None
        self._facts = load_name_facts(language)

    @property
    def root(self) -> tree_sitter.Node | None:
        """The root node, or None before the first parse."""
        return self._tree.root_node if self._tree else None

    def answer(self, request: dict[str, Any]) -> Any:
        """Apply a request's `text` or `changes`, and answer its `outside` or `rename` query.

        Requests without a query parse the text (without the old tree if `afresh`) and return the outline.
        """
        if "text" in request:
            self._source, self._tree = request["text"].encode("utf-8", "replace"), None
        for change in request.get("changes", ()):
            self.change(Change(*change))
        if "outside" in request:
            return self.outside(*request["outside"])
        self.parse(afresh=request.get("afresh", False))
        if "rename" in request:
            return self.same_name(*request["rename"])
        return outline(self.root, self._source) if self.root is not None else []

    def change(self, change: Change) -> None:
        """Apply a change to the source and shift the tree's nodes."""
        old = self._source
        start = _byte(old, change.start)
        end = start + _byte(old[start:], change.removed)
        text = change.text.encode("utf-8", "replace")
        self._source = old[:start] + text + old[end:]
        if self._tree is not None:
            new_end = start + len(text)
            self._tree.edit(start, end, new_end, _point(old, start), _point(old, end), _point(self._source, new_end))

    def parse(self, *, afresh: bool = False) -> None:
        """Parse the text, or drop the tree if the text is longer than MAX_BYTES.

        Once a text was invalid, an incremental parse can differ from a parse `afresh`, even if the text is valid again.
        """
        old = () if afresh or self._tree is None else (self._tree,)
        self._tree = self._parser.parse(self._source, *old) if len(self._source) <= MAX_BYTES else None

    def same_name(self, old: str, new: str, renamed: Sequence[int]) -> SameName | None:
        """Return the other occurrences of a renamed name, or None. All offsets are in code points."""
        if self.root is None or self._facts is None:
            return None
        starts = [_byte(self._source, offset) for offset in renamed]
        found = find_same_name(self.root, self._source, self._facts, old, new, starts)
        if found is None:
            return None
        starts, shorthands = (_offsets(self._source, places) for places in (found.starts, found.shorthands))
        return found._replace(starts=starts, shorthands=shorthands)

    def outside(self, tip: int, seen_from: int) -> Outside:
        """Return the brackets, comment or string opened before byte `seen_from` and still open at byte `tip`."""
        tip = len(self._source[:tip].rstrip())
        if self.root is None or seen_from <= 0:
            return Outside()
        nodes = nodes_around(self.root, max(0, tip - 1), tip)
        around = deque(takewhile(lambda node: node.start_byte < seen_from, nodes), maxlen=MAX_DEPTH)
        brackets = "".join(_opener(node, tip, seen_from) for node in around)
        return Outside(brackets, _kind_of_text(around, tip))


def _opener(node: tree_sitter.Node, tip: int, seen_from: int) -> str:
    """Return a node's opening bracket if the bracket is still open at byte `tip`, else ""."""
    for index in range(min(node.child_count, FIRST_CHILDREN)):
        child = node.child(index)
        if child is None or child.start_byte >= seen_from:
            return ""
        if child.type in PAIRS:
            last = node.child(node.child_count - 1)
            ends = last is not None and not last.is_missing and last.type == PAIRS[child.type]
            return "" if ends and last.start_byte < tip else child.type
    return ""


def _kind_of_text(around: Sequence[tree_sitter.Node], tip: int) -> Context | None:
    """Return the context of the innermost comment or string at byte `tip`, or None for code."""
    for parent, node in reversed([*pairwise([None, *around])]):
        assert node is not None
        if node.type.endswith("comment") and node.end_byte >= tip:
            return Context.COMMENT
        if node.type in STRINGS and node.end_byte >= tip:
            alone = parent is not None and parent.type == "expression_statement" and parent.child_count == 1
            return Context.DOCSTRING if alone else Context.STRING
    return None


def _byte(source: bytes, offset: int) -> int:
    """Convert an offset in code points to an offset in bytes."""
    if source.isascii():
        return offset
    return len(source.decode("utf-8", "replace")[:offset].encode())


def _offsets(source: bytes, starts: Sequence[int]) -> list[int]:
    """Convert offsets in bytes to offsets in code points."""
    return [len(source[:start].decode("utf-8", "replace")) for start in starts] if not source.isascii() else [*starts]


def _point(source: bytes, offset: int) -> tuple[int, int]:
    return source.count(b"\n", 0, offset), offset - (source.rfind(b"\n", 0, offset) + 1)
