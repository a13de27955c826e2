"""One client: its settings, documents and trees, and the way of a question through them.

Knows what an editor says and what it gets, as values; knows neither the wire nor the daemon's events.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lsprotocol import types

from codespec_lsp.acceptance import Acceptance
from codespec_lsp.asking import body, find_spot
from codespec_lsp.buffer import Buffer, Encoding, Place
from codespec_lsp.completer import Completer
from codespec_lsp.counters import Counters
from codespec_lsp.cursors import Cursors
from codespec_lsp.desk import ContentModified, Offer, Question
from codespec_lsp.documents import Document, Documents
from codespec_lsp.exclusions import Exclusions
from codespec_lsp.items import Target, name_of
from codespec_lsp.settings import Settings
from codespec_lsp.snippets import FrozenSnippets
from codespec_lsp.status import StatusLine
from codespec_lsp.texts import Spot, Text
from codespec_lsp.tree import SyntaxTree
from codespec_lsp.warm_up import WarmUps, likely_place
from codespec_lsp.writing import Writer

TREE_AFTER = 0.03  # seconds after a change: the answer goes first
NOT_KNOWN = "This file is not completed until its folder answers: see whether its disk or network is slow."
_TO_LAST_PAIR = re.compile("(?s:.*)[\U00010000-\U0010ffff]")
_WORD = re.compile(r"[\w$]*")
ALTERNATIVES = {"temperature": 0.7, "seed": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A question as it was received, and what an item for it replaces. `selected`: an entry of a list is selected, and
    the question is what comes behind that."""

    question: Question
    target: Target
    word: Target
    selected: bool = False


class Session:
    """Everything kept for one client. Methods that take what the client says are to be called in its order."""

    def __init__(
        self,
        writer: Writer,
        status: StatusLine,
        tell_more: Callable[[Document], bool],
        clock: Callable[[], float],
    ) -> None:
        self.settings = Settings()
        self.encoding: Encoding = "utf-16"
        self.newline = ""  # "": the document's own
        self.documents = Documents()
        self.exclusions = Exclusions()
        self.counters = Counters()
        self.acceptance = Acceptance(self.counters)
        self.writer = writer
        self.status = status
        self.completer = Completer(self._write, tell_more, self.counters, clock)
        self._clock = clock
        self._name = secrets.token_hex(4)
        self._snippets = FrozenSnippets()
        self._cursors = Cursors()
        self._warm_ups = WarmUps(self._warm_up)
        self._trees: dict[str, SyntaxTree] = {}
        self._refreshing: dict[str, asyncio.Task[None]] = {}

    def use(self, settings: Settings) -> None:
        """Takes other settings."""
        self.settings = settings
        self.exclusions.set_globs(settings.exclude)

    def opened(self, item: types.TextDocumentItem) -> None:
        """A document was opened."""
        self.closed(item.uri)
        language = item.language_id if isinstance(item.language_id, str) else ""  # lsprotocol lets anything through
        document = Document(item.uri, language, item.version, Buffer(item.text, self.encoding))
        self.documents.open(document)
        self._trees[item.uri] = SyntaxTree(document.language, document.buffer.text)
        self._refresh(item.uri)
        self._went_to(document)

    def changed(self, uri: str, version: int, changes: Sequence[types.TextDocumentContentChangeEvent]) -> None:
        """A document was edited; each change speaks of the text after the one before it."""
        document = self.documents.get(uri)
        if document is None:
            return
        self._warm_ups.stop()
        document.version, document.changed = version, self._clock()
        buffer = document.buffer
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = (self._place(buffer, position) for position in (change.range.start, change.range.end))
                edit = buffer.replace(start, end, change.text)
            else:
                edit = buffer.replace_all(change.text)
            document.edited(edit)
            self._trees[uri].edited(edit)
            self.acceptance.edited(uri, edit)
            self.completer.edited(document, edit)
        self._refresh(uri)

    def closed(self, uri: str) -> None:
        """A document was closed."""
        document = self.documents.close(uri)
        if document is None:
            return
        self._warm_ups.close(document)
        self.completer.close(document)
        self.acceptance.close(uri)
        self._snippets.forget(uri)
        self._cursors.forget(uri)
        self.exclusions.forget(uri)
        self._trees.pop(uri, None)
        if (task := self._refreshing.pop(uri, None)) is not None:
            task.cancel()

    def focused(self, uri: str) -> None:
        """The user went to a document."""
        document = self.documents.get(uri)
        if document is not None:
            self.documents.used(document)
            self._went_to(document)

    async def close(self) -> None:
        """The client is gone."""
        for uri in [document.uri for document in self.documents]:
            self.closed(uri)
        await self.writer.close()

    def why_not(self, document: Document) -> str:
        """Why a document is not completed, in one sentence; "" where it is."""
        if not self.settings.enabled:
            return "codespec is switched off (codespec.enabled)."
        if not self.settings.completes(document.language_id):
            return f"codespec is switched off for {document.language_id} (codespec.languages)."
        reason = self.exclusions.known(document.uri)
        return NOT_KNOWN if reason is None else reason

    def ask(
        self,
        uri: str,
        position: types.Position,
        explicit: bool,
        selected: types.SelectedCompletionInfo | None = None,
    ) -> Asked | None:
        """Takes a question, with the document as it is now; None for a document that is not open."""
        document = self.documents.get(uri)
        if document is None:
            return None
        self._warm_ups.stop()
        buffer = document.buffer
        here = self._place(buffer, position)
        self.documents.used(document)
        self.counters.questions += 1
        target = self._target(document, here, _repeats_from(buffer, here))
        word = self._target(document, here, _word_start(buffer, here))
        spot = find_spot(uri, buffer, here)
        if selected is not None:
            start, end = (self._place(buffer, place) for place in (selected.range.start, selected.range.end))
            spot = find_spot(uri, buffer, start, selected.text, end)
            target = Target(selected.range, selected.text, target.newline)
        question = Question(document, spot, buffer.offset(here), document.version, self._clock(), explicit)
        question.in_document = selected is None
        self.completer.take(question)
        return Asked(question, target, word, selected is not None)

    async def answer(self, asked: Asked) -> list[Offer]:
        """What to show. Raises ContentModified where the document moved on."""
        question = asked.question
        await self.exclusions.look(self._concerned(question.document))
        reason = self.why_not(question.document)
        self.status.document(reason)
        if reason:
            return []
        settings = self.settings
        budget = settings.invoked_budget_ms if question.explicit else settings.budget_ms
        try:
            offers = await self.completer.answer(question, budget / 1000, settings.alternatives)
        except ContentModified:
            self.counters.superseded += 1
            raise
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        self.counters.milliseconds.append((self._clock() - question.received) * 1000)
        if offers:
            self.counters.answered += 1
            self.acceptance.show(question.document.uri, [_as_shown(offer) for offer in offers], self._tip(asked))
        return offers

    @staticmethod
    def _tip(asked: Asked) -> int:
        """Where in the document the suggestion goes on; -1 where an entry of a list would come first."""
        return -1 if asked.selected else asked.question.offset

    def _place(self, buffer: Buffer, position: types.Position) -> Place:
        return buffer.place(position.line, position.character)

    def _target(self, document: Document, here: Place, column: int) -> Target:
        buffer = document.buffer
        start = types.Position(here.row, buffer.character(Place(here.row, column)))
        end = types.Position(here.row, buffer.character(here))
        typed = buffer.lines[here.row][column : here.column]
        return Target(types.Range(start, end), typed, self.newline or buffer.newline)

    def _write(self, question: Question, texts: list[Text], others: int) -> asyncio.Task[None]:
        """Has texts written: the best one, or so many others beside it."""
        document = question.document
        tree = self._trees.get(document.uri) if question.in_document else None
        trigger = "invoked" if question.explicit else "automatic"
        asked = self._body(document, question.spot, tree, trigger)
        if others:
            asked |= {"document": f"{asked['document']}#others", "n": others, **ALTERNATIVES}
        return self.writer.start(texts, asked, document.buffer.newline)

    def _warm_up(self, document: Document) -> asyncio.Task[None] | None:
        """Has a document read that will be asked about."""
        return self.writer.keep(self._warm_up_if_allowed(document)) if document.buffer.text.strip() else None

    async def _warm_up_if_allowed(self, document: Document) -> None:
        await self.exclusions.look(self._concerned(document))
        if not self.why_not(document):
            spot = find_spot(document.uri, document.buffer, likely_place(document))
            await self.writer.warm_up(self._body(document, spot, None, "opened") | {"warm_up": True})

    def _body(self, document: Document, spot: Spot, tree: SyntaxTree | None, trigger: str) -> dict[str, Any]:
        """What is asked of the daemon at a spot of a document."""
        head = document.buffer.text[: spot.offset].encode("utf-8", "replace") if spot.offset else b""
        snippets = self._snippets.find(document, self.documents, self._may_send) if self.settings.snippets else ()
        return body(
            spot,
            document=self._document_name(document),
            version=document.version,
            language=document.language_id,
            path=document.path,
            snippets=snippets,
            cursor=self._cursors.find(document.uri, document.language, spot.prefix, spot.suffix, tree, len(head)),
            trigger=trigger,
            max_tokens=self.settings.max_tokens,
        )

    def _document_name(self, document: Document) -> str:
        """What the daemon calls a document: the same file in two editors is two."""
        return f"{self._name}-{hashlib.blake2b(document.uri.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    def _may_send(self, document: Document) -> bool:
        return self.exclusions.known(document.uri) == ""

    def _went_to(self, document: Document) -> None:
        """The user is at a document: what it gets is shown, and the daemon may read it."""
        self._warm_ups.plan(document)
        self.writer.keep(self._show_what_it_gets(document))

    async def _show_what_it_gets(self, document: Document) -> None:
        await self.exclusions.look([document.uri])
        if document is self.documents.last:
            self.status.document(self.why_not(document))

    def _concerned(self, document: Document) -> list[str]:
        """The documents whose text would be sent with a question in one."""
        return [each.uri for each in self.documents if each is document or self.settings.snippets]

    def _refresh(self, uri: str) -> None:
        """Has the tree parsed in a moment, unless that is under way."""
        task = self._refreshing.get(uri)
        if task is None or task.done():
            self._refreshing[uri] = asyncio.get_running_loop().create_task(_refresh_soon(self._trees[uri]))


async def _refresh_soon(tree: SyntaxTree) -> None:
    await asyncio.sleep(TREE_AFTER)
    await tree.refresh()


def _repeats_from(buffer: Buffer, here: Place) -> int:
    """Where what an item repeats begins: with the line, or behind its last character of two UTF-16 units. VS Code shows
    no suggestion whose replaced text has one (seen in 1.100)."""
    line = buffer.lines[here.row][: here.column]
    found = None if line.isascii() else _TO_LAST_PAIR.match(line)
    return found.end() if found else 0


def _word_start(buffer: Buffer, here: Place) -> int:
    line = buffer.lines[here.row][: here.column]
    return len(line) - len(_WORD.match(line[::-1])[0])  # type: ignore[index]  # it matches any text


def _as_shown(offer: Offer) -> tuple[str, str, int]:
    """A name, the text as far as it is shown, how much of it stands in the document."""
    typed = len(offer.text.text) - len(offer.full)
    return name_of(offer), offer.text.text[: typed + len(offer.rest)], typed
