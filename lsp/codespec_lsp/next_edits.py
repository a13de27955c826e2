"""Answer requests for the next edit: decide when there is one, find it, and keep it valid while the user goes on.

Edits that repeat the user's last change come at once and need no daemon. Only if there are none, a model is asked.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from codespec.exclusions.secret_text import secret_rows
from codespec_lsp.acceptance import Counters
from codespec_lsp.buffer import Edit, TextPosition
from codespec_lsp.context import RequestContext
from codespec_lsp.documents import Document, Documents, canonical
from codespec_lsp.edit_filter import Rejected, is_insertion_above, rebased, why_hidden
from codespec_lsp.edit_history import MAX_LINE, EditHistory, line_edit
from codespec_lsp.edit_model import EditModel, Sought, may_be_sent
from codespec_lsp.edit_places import Anchors, other_places
from codespec_lsp.edit_types import Change, Hunk, NextEdit, Source
from codespec_lsp.settings import OUR_PART, EditorSettings

ALWAYS = ("accepted", "invoked")  # triggers that are answered also when the others are not
MOVED_WITHIN = 10.0  # seconds after an edit in which a move of the cursor may ask for the next one
MAX_KNOWN = 64  # edits that the client may still report on
LONG_NEAR = 8  # rows around the cursor without long lines
OFF = "Next edits are switched off (codespec.nextEdit)."
NOT_OPEN = "The document is not open."
IN_CELL = "The cells of notebooks get no next edits."
NOTHING = "Nothing was edited in the last five minutes."
UNDONE = "The last edit brought back an earlier text."
BULK = "More was changed at once than anyone types."
DISMISSED = "The last suggestion was dismissed, and nothing was edited since."
LONG = "The lines at the cursor are too long."
MOVED_LATE = f"The last edit is more than {MOVED_WITHIN:.0f} seconds old."
CHANGED = "The document changed, or a newer request came, before the edit was found."
LATE = "No edit was found within codespec.nextEditBudgetMs."
NONE = "Nothing repeats the last change."
SECRET = "The last change is near a secret, in a file that is not sent, or too long, so no model is asked."
HIDDEN = "The model's edit is not one to show: it only adds lines above the cursor, or touches a secret."

FindRepeats = Callable[[Document, Sequence[Change]], Awaitable[Sequence[Hunk]]]


@dataclass(eq=False, slots=True)
class EditRequest:
    """A client's request for the next edit, with the state of its document at that time.

    `trigger` is typing, moved, left insert, accepted or invoked; any other one counts as typing. `problems` are the
    rows and messages of the client's diagnostics. `received` is in seconds.
    """

    document: Document
    position: TextPosition
    trigger: str
    problems: Sequence[tuple[int, str]]
    revision: int
    received: float


@dataclass(frozen=True, slots=True)
class EditAnswer:
    """The next edit, or None with the reason in one sentence."""

    edit: NextEdit | None = None
    reason: str = ""


class NextEdits:
    """The next edits of one client.

    `refresh` renews the decision whether a file may be read, and `why_not` is the reason against a document, or "".
    """

    def __init__(
        self,
        documents: Documents,
        settings: Callable[[], EditorSettings],
        refresh: Callable[[Iterable[str]], Awaitable[None]],
        why_not: Callable[[Document], str],
        find_repeats: FindRepeats,
        model: EditModel,
        context: RequestContext,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.history = EditHistory(clock)
        self._reason = ""  # why the last request got no edit
        self._documents, self._settings, self._refresh, self._why_not = documents, settings, refresh, why_not
        self._find_repeats, self._counters, self._clock = find_repeats, counters, clock
        self.model, self._context = model, context
        self._anchors = Anchors()
        self._rejected = Rejected()
        self._pending: dict[str, NextEdit] = {}  # the edit that was answered last, with its current rows
        self._known: OrderedDict[str, NextEdit] = OrderedDict()  # edits as they were answered
        self._newest: dict[str, tuple[EditRequest, asyncio.Event]] = {}
        self._dismissed_at = -1  # number of the edit before the last dismissal
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count(1))

    def edited(self, document: Document, edit: Edit) -> None:
        """Follow an edit of a document, already applied."""
        self._supersede(document.uri)
        lines = None if document.is_cell else line_edit(document, edit)
        if lines is None:
            return
        pending, applies = self._pending.pop(document.uri, None), False
        if pending is not None:
            moved = [each for hunk in pending.hunks if (each := rebased(hunk, lines)) is not None]
            left = [hunk for hunk in moved if hunk.old != hunk.new]
            applies = len(left) < len(moved)
            if left and (applies or pending.source == "model"):  # a change of the user's has other repetitions
                self._pending[document.uri] = replace(pending, hunks=left)
        self._rejected.edited(document.uri, lines)
        self._anchors.edited(document.uri, lines)
        self.history.edited(document, lines, predicted=applies)

    def opened(self, document: Document) -> None:
        """Drop the changes of a document whose text may be another one now."""
        self.history.forget(document)

    def close(self, document: Document) -> None:
        """Drop the suggestions in a document that is closed or lost. Its changes stay in the history."""
        self._supersede(document.uri)
        self._pending.pop(document.uri, None)
        self._anchors.close(document.uri)

    def receive(
        self, uri: str, position: tuple[int, int], trigger: str, problems: Sequence[tuple[int, str]] = ()
    ) -> EditRequest | None:
        """Create a request at a client's position; None if the document is not open."""
        document = self._documents.get(canonical(uri))
        if document is None:
            return None
        document.spelled = uri
        self._supersede(document.uri)
        here = document.buffer.position(*position)
        request = EditRequest(document, here, trigger, problems, document.revision, self._clock())
        self._newest[document.uri] = (request, asyncio.Event())
        return request

    async def answer(self, request: EditRequest | None) -> EditAnswer:
        """Return the next edit within the time budget."""
        answer = EditAnswer(reason=NOT_OPEN) if request is None else await self._answer_in_time(request)
        self._reason = answer.reason
        return answer

    def status(self) -> dict[str, str]:
        """Return the setting, and why the last request got no edit ("" if it got one), as JSON values."""
        return {"setting": self._settings().next_edit, "reason": self._reason}

    def shown(self, name: str) -> None:
        """Count an edit that the client has shown."""
        self._counters.edits_shown += name in self._known

    def accepted(self, name: str) -> None:
        """Count a hunk of an edit that the user accepted."""
        self._counters.edits_accepted += name in self._known

    def dismissed(self, name: str) -> None:
        """Stop to suggest an edit that the user dismissed, and any other one until the next edit of the user's."""
        edit = self._known.get(name)
        if edit is None:
            return
        self._counters.edits_dismissed += 1
        pending = self._pending.get(edit.uri)
        if pending is not None and pending.id == name:
            edit = self._pending.pop(edit.uri)
        self._rejected.add(edit.uri, edit.hunks)
        self._dismissed_at = self.history.number

    async def _answer_in_time(self, request: EditRequest) -> EditAnswer:
        newest, superseded = self._newest.get(request.document.uri, (None, asyncio.Event()))
        if newest is not request or request.document.revision != request.revision:
            return EditAnswer(reason=CHANGED)
        left = request.received + self._settings().next_edit_budget_ms / 1000 - self._clock()
        finding = asyncio.ensure_future(self._find(request))
        waiting = asyncio.ensure_future(superseded.wait())
        try:
            await asyncio.wait((finding, waiting), timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if superseded.is_set():
                return EditAnswer(reason=CHANGED)
            return finding.result() if finding.done() else EditAnswer(reason=LATE)
        finally:
            finding.cancel()
            waiting.cancel()

    async def _find(self, request: EditRequest) -> EditAnswer:
        document = request.document
        await self._refresh(self._context.concerned(document))
        if self._documents.get(document.uri) is not document:
            return EditAnswer(reason=CHANGED)
        reason = self._why_not_here(request) or self._why_not_now(request)
        if reason:
            return EditAnswer(reason=reason)
        known = self._pending.get(document.uri)
        if known is not None:
            answer = self._suggest(request, known.source, known.hunks)
            if answer.edit is not None:
                return answer
        answer = await self._repeats(request)
        if answer.edit is not None or not self._settings().next_edit_model:
            return answer
        predicted = await self._ask_model(request)
        return predicted if predicted.edit is not None or answer.reason == NONE else answer

    async def _repeats(self, request: EditRequest) -> EditAnswer:
        """Return the other places of the user's last change."""
        document = request.document
        changes = [each for each in self.history.changes() if each.uri == document.uri]
        found = await self._find_repeats(document, changes)
        if document.revision != request.revision:
            return EditAnswer(reason=CHANGED)
        return self._suggest(request, "rename", found) if found else EditAnswer(reason=NONE)

    async def _ask_model(self, request: EditRequest) -> EditAnswer:
        """Return what the model predicts at the cursor, else at the places that the last change concerns."""
        document, row = request.document, request.position.row
        reason, known = await self.model.why_not(), self.history.changes()
        changes = [each for each in known if self._may_send(each, document) and may_be_sent(each)]
        if reason or changes[-1:] != known[-1:]:
            return EditAnswer(reason=reason or SECRET)
        here = self._anchors.place(document, row)
        last = changes[-1] if changes[-1].uri == document.uri else None
        answer = await self._predict(request, [here], changes)
        others = other_places(last, document.buffer, here, [each for each, _ in request.problems])
        if answer.edit is None and others:
            answer = await self._predict(request, others, changes)
        return answer

    async def _predict(self, request: EditRequest, places: Sequence[int], changes: Sequence[Change]) -> EditAnswer:
        document, context = request.document, self._context
        end = request.received + (self._settings().next_edit_budget_ms - OUR_PART) / 1000
        name, path = context.document_name(document), context.shown(document.path)
        paths = [context.shown(each.path) for each in changes]
        sought = Sought(document, name, path, request.position, places, changes, paths, request.problems)
        hunks, reason = await self.model.find(sought, end - self._clock())
        if document.revision != request.revision:
            return EditAnswer(reason=CHANGED)
        hidden = secret_rows(document.buffer.text)
        kept = [
            hunk
            for hunk in hunks
            if not is_insertion_above(hunk, request.position.row)
            and hidden.isdisjoint(range(hunk.start_row, hunk.end_row + 1))
        ]
        return self._suggest(request, "model", kept) if kept else EditAnswer(reason=reason or HIDDEN)

    def _may_send(self, change: Change, document: Document) -> bool:
        """Return whether a change may be sent with a request in a document."""
        other = self._documents.get(change.uri)
        return change.uri == document.uri or (other is not None and self._context.may_send(other))

    def _suggest(self, request: EditRequest, source: Source, hunks: Sequence[Hunk]) -> EditAnswer:
        """Return an edit of the hunks that may be shown, the nearest one after the cursor first."""
        document, row = request.document, request.position.row
        hidden = {hunk: why_hidden(hunk, document.uri, document.buffer, self.history, self._rejected) for hunk in hunks}
        kept = sorted((hunk for hunk in hunks if not hidden[hunk]), key=lambda hunk: (hunk.start_row < row, hunk))
        if not kept:
            self._pending.pop(document.uri, None)
            return EditAnswer(reason=next(iter(hidden.values()), NONE))
        edit = NextEdit(next(self._names), document.uri, document.version, kept, source)
        self._pending[document.uri] = self._known[edit.id] = edit
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return EditAnswer(edit)

    def _why_not_here(self, request: EditRequest) -> str:
        """Return the reason why a document gets no next edits, or ""."""
        if self._settings().next_edit == "off":
            return OFF
        if request.document.is_cell:
            return IN_CELL
        lines, row = request.document.buffer.lines, request.position.row
        near = lines[max(0, row - LONG_NEAR) : row + LONG_NEAR]
        return self._why_not(request.document) or (LONG if any(len(line) > MAX_LINE for line in near) else "")

    def _why_not_now(self, request: EditRequest) -> str:
        """Return the reason why there is no next edit at this time, or ""."""
        if not self.history.changes():
            return NOTHING
        if request.trigger in ALWAYS:
            return ""
        if self.history.undone:
            return UNDONE
        if self.history.is_bulk:
            return BULK
        if self._dismissed_at == self.history.number:
            return DISMISSED
        late = request.trigger == "moved" and self._clock() - self.history.edited_at > MOVED_WITHIN
        return MOVED_LATE if late else ""

    def _supersede(self, uri: str) -> None:
        newest = self._newest.pop(uri, None)
        if newest is not None:
            newest[1].set()
