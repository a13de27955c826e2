"""The session of one client: its settings, its documents with their per-document state, and its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lsprotocol import types

from codespec_lsp.buffer import Buffer, Edit, Encoding, TextPosition
from codespec_lsp.completer import Completer, ContentModified, PendingRequest
from codespec_lsp.completions import (
    REPEATED,
    Acceptance,
    CachedCompletion,
    Dismissals,
    EditRange,
    Suggestion,
    repeats_from,
)
from codespec_lsp.daemon import Daemon, LookupFiles, WarmUps
from codespec_lsp.documents import Document, Documents, Notebooks, canonical, is_magic, now, path_of
from codespec_lsp.exclusions import DECISION_TIMEOUT_S, Exclusions
from codespec_lsp.next_edits import NextEdits
from codespec_lsp.prompt import RequestContext, build_prompt, clean, with_newlines
from codespec_lsp.settings import EditorSettings
from codespec_lsp.status import Counters, StatusLine
from codespec_lsp.syntax import DocumentSyntax, DocumentTree

LOST = "A change of {} could not be read, so the file is not completed: close the file and open it again."
MAGIC = "Magics are not completed, nor are cells that a magic passes to another program."
NOT_KNOWN = "This file is not completed until its folder can be read: check whether its disk or network is slow."
UNPARSED = (
    "{path} is completed without the syntax of its whole text, because parsing failed or took too much time or memory: "
    "close the file and open it again to have it parsed again."
)
Records = Sequence[Mapping[str, Any]]  # objects of a message
TEMPERATURE = 0.7  # of alternatives


class Session:
    """The state of one client. Handlers are called in message order, with URIs as the client sent them."""

    def __init__(
        self, daemon: Daemon, status: StatusLine, tell_more: Callable[[Document], bool], warn: Callable[[str], None]
    ) -> None:
        self.settings = EditorSettings()
        self.encoding: Encoding = "utf-16"
        self.shows_more = False  # whether the client extends a shown suggestion after a `more` notification
        self.vim = False  # whether the client is Vim or Neovim, which count and display a \r as a character
        self.documents = Documents()
        self.exclusions = Exclusions()
        self.counters = Counters()
        self.acceptance = Acceptance(self.counters)
        self.dismissals = Dismissals(self.counters)
        self.daemon = daemon
        self.status = status
        self.completer = Completer(self._generate, tell_more, self.counters)
        self._warn = warn
        self._warm_ups = WarmUps(self._read_ahead, daemon)
        self._folders: set[str] = set()
        self._notebooks = Notebooks()
        self._trees: list[DocumentTree] = []
        self._context = RequestContext(self.documents, self.exclusions, lambda: self.settings)
        self._lookup_files = LookupFiles(self._context, daemon, self._is_completed)
        self.edits = NextEdits(daemon, self._context, self.why_not, self.counters)

    def use(self, settings: EditorSettings) -> None:
        self.settings = settings
        self.daemon.use(settings)
        self.edits.model.forget()
        self.exclusions.set_globs(settings.exclude, settings.secret_files, settings.not_secret_files)

    def use_folders(self, added: Sequence[str], removed: Sequence[str] = ()) -> None:
        self._folders -= {canonical(uri) for uri in removed}
        self._folders |= {canonical(uri) for uri in added if uri}
        self.exclusions.set_roots([path_of(uri) for uri in self._folders])

    def opened(self, item: Mapping[str, Any]) -> None:
        self.closed(item["uri"])
        uri, version = canonical(item["uri"]), item.get("version")
        buffer, file = Buffer(item["text"], self.encoding, self.vim), self._notebooks.opened(uri)
        document = Document(uri, item["languageId"], version, buffer, spelled=item["uri"], file=file)
        self.documents[uri] = document
        self.edits.history.forget(document)  # the text may have changed while it was closed
        document.syntax = DocumentSyntax(document, self._trees, lambda: self._warn(UNPARSED.format(path=document.path)))
        self._went_to(document)

    def changed(self, item: Mapping[str, Any], changes: Records) -> None:
        """Apply a client's changes to a document in order, each change to the result of the previous change."""
        uri = canonical(item["uri"])
        document = self.documents.get(uri)
        if document is None:
            return
        self._warm_ups.changed(document)
        document.version, document.changed = item.get("version"), now()
        buffer = document.buffer
        for change in changes:
            span, text = change.get("range"), change["text"]
            if document.lost and span is not None:
                continue
            document.lost = True  # cleared below if every step succeeds
            if span is None:
                edit = buffer.replace_all(text)
            else:
                start, end = ((at["line"], at["character"]) for at in (span["start"], span["end"]))
                edit = buffer.change(start, end, text)
            document.edited(edit)
            document.syntax.edited(edit)
            self.acceptance.edited(uri, edit)
            self.dismissals.edited(uri, edit)
            self.completer.edited(document, edit)
            self.edits.edited(document, edit)
            document.lost = False

    def lose(self, uri: str | None) -> None:
        """Stop completing a document (all documents if `uri` is None) until the client sends its whole text."""
        concerned = [each for each in self.documents.values() if uri is None or canonical(uri) in (each.uri, each.file)]
        for document in (each for each in concerned if not each.lost):
            document.lose()
            self.completer.edited(document, Edit(0, document.buffer.text, ""))
            self.edits.close(document)
            self.edits.history.forget(document)
            self.status.complain(LOST.format(PurePath(document.path).name))

    def closed(self, uri: str) -> None:
        uri = canonical(uri)
        document = self.documents.pop(uri, None)
        if document is None:
            return
        self._warm_ups.close(uri)
        self._lookup_files.close(document)
        self.completer.close(document)
        self.edits.close(document)
        self.acceptance.close(uri)
        self.dismissals.close(uri)
        self._context.imported.close(uri)
        self._notebooks.closed(uri)
        if all(each.file != document.file for each in self.documents.values()):
            self.exclusions.forget(document.file)
        document.syntax.close()

    def notebook_opened(self, spelled: str, cells: Records, texts: Records) -> None:
        self._notebooks.open(canonical(spelled), cells)
        self._cells_opened(texts, cells)

    def notebook_changed(self, spelled: str, change: Mapping[str, Any]) -> None:
        """Apply a notebook change: first the structure of its cells, then their texts."""
        if structure := change.get("structure"):
            array, cells = structure["array"], structure["array"].get("cells", ())
            self._notebooks.splice(canonical(spelled), array["start"], array["deleteCount"], cells)
            for item in structure.get("didClose", ()):
                self.closed(item["uri"])
            self._cells_opened(structure.get("didOpen", ()), cells)
        for each in change.get("textContent", ()):
            self.changed(each["document"], each["changes"])

    def notebook_closed(self, spelled: str) -> None:
        for cell in self._notebooks.close(canonical(spelled)):
            self.closed(cell)

    def _cells_opened(self, texts: Records, cells: Records) -> None:
        for item in texts:
            self.opened(item)
        for document in self._notebooks.settle(cells, self.documents):
            self._went_to(document)

    def focused(self, uri: str, position: types.Position | None = None) -> None:
        """Record that the user moved to a document or to another position in a document."""
        document = self.documents.get(canonical(uri))
        if document is None:
            return
        stays = position is not None and document is self.documents.last
        if position is not None:
            document.rests = document.buffer.offset(document.buffer.position(position.line, position.character))
        self.documents.move_to_end(document.uri)
        if stays:
            self._warm_ups.visited(document)
        else:
            self._went_to(document)

    async def close(self) -> None:
        """Close all documents and release all resources after the client has disconnected."""
        for uri in list(self.documents):
            self.closed(uri)
        await self._context.imported.end()
        self._lookup_files.end()
        await self.exclusions.end()
        await self.daemon.close()

    def why_not(self, document: Document) -> str:
        """Return one sentence that says why a document is not completed, or ""."""
        if not self.settings.enabled:
            return "codespec is switched off (codespec.enabled)."
        if not self.settings.languages.get(document.language_id, True):
            return f"codespec is switched off for {document.language_id} (codespec.languages)."
        if document.lost:
            return LOST.format(PurePath(document.path).name)
        if self._notebooks.is_text(document):
            return "The text cells of notebooks are not completed."
        reason = self.exclusions.known(document.file)
        return NOT_KNOWN if reason is None else reason

    def receive(
        self,
        uri: str,
        position: types.Position,
        explicit: bool,
        selected: types.SelectedCompletionInfo | None = None,
        *,
        whole: bool = False,
    ) -> PendingRequest | None:
        """Create a request, or return None if the document is not open or the selected text is too long."""
        document = self.documents.get(canonical(uri))
        if document is None:
            self.status.document("The editor requested a completion in a file that it did not open: open it again.")
            return None
        if selected is not None and len(selected.text) > 2 * REPEATED:
            return None
        document.spelled = uri
        buffer = document.buffer
        here = buffer.position(position.line, position.character)
        document.rests = buffer.offset(here)
        self._warm_ups.requested(document)
        self.documents.move_to_end(document.uri)
        self.counters.questions += 1
        edit_range = self._edit_range(document, here, repeats_from(buffer, here))
        word = self._edit_range(document, here, buffer.word_start(here))
        above = self._notebooks.above(document, self.documents)
        if selected is None:
            known = None if document.is_cell else self.completer.prompt_at(document, document.rests)
            prompt = known or build_prompt(document.uri, buffer, here, above=above)
        else:
            start, end = (buffer.position(at.line, at.character) for at in (selected.range.start, selected.range.end))
            prompt = build_prompt(document.uri, buffer, start, selected.text, end, above)
            edit_range = EditRange(selected.range, selected.text, edit_range.newline)
        request = PendingRequest(
            *(document, prompt, document.rests, document.revision, now(), edit_range, word, explicit),
            selected=selected is not None,
            grows=self.shows_more and self.settings.more and not explicit and not whole,
            in_magic=document.is_cell and is_magic(document.language_id, buffer, here.row),
        )
        self.completer.receive(request)
        return request

    async def answer(self, request: PendingRequest) -> list[Suggestion]:
        """Return the suggestions to show. Raises ContentModified if the document has changed since the request."""
        await self._context.refresh(request.document)
        reason = self.why_not(request.document) or (MAGIC if request.in_magic else "")
        if reason != self.status.reason:
            self.status.document(reason)
        if reason == NOT_KNOWN:
            self.daemon.spawn(self._show_what_it_gets(request.document))
        empty = not (request.prompt.prefix or request.prompt.suffix)
        if reason or empty:
            return []
        if request.explicit:
            self.dismissals.forgive(request.prompt)
        elif self.dismissals.is_quiet(request.prompt):
            self.counters.kept_quiet += 1
            return []
        await self._context.look_at_imports(request.document)
        settings = self.settings
        budget = settings.invoked_budget_ms if request.explicit else settings.budget_ms
        try:
            suggestions = await self.completer.answer(request, budget / 1000, settings.alternatives)
        except ContentModified:
            self.counters.superseded += 1
            raise
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        self.counters.milliseconds.append((now() - request.received) * 1000)
        if suggestions:
            self.counters.answered += 1
            tip = -1 if request.selected else request.offset  # accepting also inserts the selected list item
            self.acceptance.show(request.document.uri, suggestions, tip)
            if tip >= 0:
                self.dismissals.show(request.prompt, suggestions[0].shown, tip)
        return suggestions

    def _edit_range(self, document: Document, here: TextPosition, column: int) -> EditRange:
        buffer = document.buffer
        column = max(column, (here.column - REPEATED) // REPEATED * REPEATED)
        start = types.Position(here.row, buffer.character(TextPosition(here.row, column)))
        end = types.Position(here.row, buffer.character(here))
        typed = buffer.lines[here.row][column : here.column]
        return EditRange(types.Range(start, end), typed, "\n" if buffer.vim else buffer.newline)

    def _generate(
        self, request: PendingRequest, completions: list[CachedCompletion], alternatives: int
    ) -> asyncio.Task[None]:
        """Start to stream the best completion if `alternatives` is 0, else that number of alternatives."""
        document = request.document
        trigger = "invoked" if request.explicit else "automatic"
        body = self._context.request_body(document, request.prompt, trigger, request.in_document)
        at, find = request.prompt, document.deletions.find
        if request.in_document and (draft := find(request.offset, at.prefix, at.suffix)):
            body["draft"] = with_newlines(clean(draft))
        if alternatives:
            body |= {"document": f"{body['document']}#others", "n": alternatives, "temperature": TEMPERATURE, "seed": 1}
        return self.daemon.start(completions, body, document.buffer.newline)

    async def _read_ahead(self, document: Document) -> None:
        """Let the daemon prefill the prompt at the likely cursor position in a document."""
        if await self._is_completed(document):
            await self._context.look_at_imports(document)
            await self._context.imported.read(DECISION_TIMEOUT_S)  # so that the first request has the same prompt
            above = self._notebooks.above(document, self.documents)
            prompt = build_prompt(document.uri, document.buffer, document.likely_position, above=above)
            body = self._context.request_body(document, prompt, "opened", in_document=False)
            await self.daemon.warm_up(body | {"warm_up": True})

    async def _is_completed(self, document: Document) -> bool:
        """Renew the exclusion decisions, and return whether a document is completed."""
        await self._context.refresh(document)
        return not self.why_not(document)

    def _went_to(self, document: Document) -> None:
        """Plan the warm-up and the lookup files for the document in focus, and update the status."""
        self._warm_ups.visited(document)
        self._lookup_files.plan(document)
        self.daemon.spawn(self._show_what_it_gets(document))

    async def _show_what_it_gets(self, document: Document) -> None:
        async for _ in self.exclusions.follow(document.file):
            if document is self.documents.last:
                self.status.document(self.why_not(document))
