"""Answer requests for the next edit, and keep an answered edit valid while the user types.

If the user's last change renamed an identifier, suggest its other occurrences without calling the daemon. After any
other change, ask the daemon's model for an edit.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from codespec.exclusions.secrets import secret_rows
from codespec_lsp.buffer import Buffer, Edit
from codespec_lsp.daemon import Daemon
from codespec_lsp.documents import Document, canonical, now
from codespec_lsp.edit_model import EditModel, EditRequest, may_be_sent
from codespec_lsp.line_edits import MAX_LINE, Change, EditHistory, Hunk, line_edit, rebased, why_hidden
from codespec_lsp.prompt import RequestContext
from codespec_lsp.renames import find_repeats
from codespec_lsp.settings import OVERHEAD_MS
from codespec_lsp.status import Counters

ALWAYS = ("accepted", "invoked")  # triggers that are answered at any time
MOVE_WINDOW_S = 10.0  # seconds after an edit in which a cursor movement may request the next one
MAX_KNOWN = 64  # edits that the client may still report as shown, accepted or dismissed
LONG_NEAR = 8  # rows around the cursor that must have no long line
ABOVE, BELOW = 1, 3  # rows around the last place in which the cursor does not move it: keeps the prompt's beginning
MAX_OTHERS, APART = 2, 8  # places besides the cursor's, and the rows between two: their windows must not overlap
MAX_REJECTED = 20  # dismissed hunks that are not suggested again
MIN_WORD = 3  # characters of a removed word that is searched
CHANGED = "The document changed, or a newer request arrived, before the edit was found."
NONE = "Nothing repeats the last change."
SECRET = "The last change is near a secret, in a file that is not sent, or too long, so the model does not get it."
HIDDEN = "The model's edit is not shown: it only adds lines above the cursor or touches a secret."

Source = Literal["rename", "model"]
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class NextEdit:
    """A suggested edit of one document. `hunks` apply to the document's `version` and are visited in order."""

    id: str
    uri: str
    version: int | None
    hunks: Sequence[Hunk]
    source: Source


Answer = NextEdit | str  # the next edit, or one sentence that says why there is none


class NextEdits:
    """Suggests the next edits to one client. `why_not` returns why a document is not completed, or ""."""

    def __init__(
        self, daemon: Daemon, context: RequestContext, why_not: Callable[[Document], str], counters: Counters
    ) -> None:
        self.history = EditHistory(now)
        self.model = EditModel(daemon, context)
        self.reason = ""  # why the last request got no edit, or ""
        self._context, self._why_not, self._counters = context, why_not, counters
        self._anchors: dict[str, int] = {}  # by URI, the row for which the model was last asked
        self._rejected: list[tuple[str, Hunk]] = []  # URI and hunk with its current rows
        self._pending: dict[str, NextEdit] = {}  # by URI, the last answered edit with its current rows
        self._known: OrderedDict[str, NextEdit] = OrderedDict()  # by id, the edits as answered
        self._newest: dict[str, EditRequest] = {}
        self._finding: dict[str, asyncio.Task[Answer]] = {}  # by URI, the answer to the newest request
        self._dismissed_at = -1  # the history's edit number at the last dismissal
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count(1))

    def edited(self, document: Document, edit: Edit) -> None:
        """Record an edit that was applied to a document, and update the suggestions in that document."""
        self._supersede(document.uri)
        lines = None if document.is_cell else line_edit(document, edit)
        if lines is None:
            return
        pending, applies = self._pending.pop(document.uri, None), False
        if pending is not None:
            moved = [each for hunk in pending.hunks if (each := rebased(hunk, lines)) is not None]
            left = [hunk for hunk in moved if hunk.old != hunk.new]
            applies = len(left) < len(moved)
            if left and (applies or pending.source == "model"):  # after another change, a rename is searched again
                self._pending[document.uri] = replace(pending, hunks=left)
        kept = [(uri, rebased(hunk, lines) if uri == document.uri else hunk) for uri, hunk in self._rejected]
        self._rejected = [(uri, hunk) for uri, hunk in kept if hunk is not None and hunk.old != hunk.new]
        if document.uri in self._anchors:
            self._anchors[document.uri] = lines.moved(self._anchors[document.uri])
        self.history.edited(document, lines, predicted=applies)

    def close(self, document: Document) -> None:
        """Drop the suggestions in a document that is closed or whose text is unknown, but not its history."""
        self._supersede(document.uri)
        self._pending.pop(document.uri, None)
        self._anchors.pop(document.uri, None)

    def receive(
        self, uri: str, position: tuple[int, int], trigger: str, problems: Sequence[tuple[int, str]] = ()
    ) -> EditRequest | None:
        """Create a request for an edit at a client's position. Return None if the document is not open."""
        document = self._context.documents.get(canonical(uri))
        if document is None:
            return None
        document.spelled = uri
        self._supersede(document.uri)
        here = document.buffer.position(*position)
        request = self._newest[document.uri] = EditRequest(document, here, trigger, problems, now())
        return request

    async def answer(self, request: EditRequest | None) -> Answer:
        """Return the next edit within the time budget."""
        answer = "The document is not open." if request is None else await self._answer_in_time(request)
        self.reason = answer if isinstance(answer, str) else ""
        return answer

    def shown(self, name: str) -> None:
        """Count an edit that the client has shown."""
        self._counters.edits_shown += name in self._known

    def accepted(self, name: str) -> None:
        """Count a hunk of an edit that the user accepted."""
        self._counters.edits_accepted += name in self._known

    def dismissed(self, name: str) -> None:
        """Stop suggesting a dismissed edit, and suggest no other edit either until the user changes the text."""
        edit = self._known.get(name)
        if edit is None:
            return
        self._counters.edits_dismissed += 1
        pending = self._pending.get(edit.uri)
        if pending is not None and pending.id == name:
            edit = self._pending.pop(edit.uri)
        self._rejected = [*self._rejected, *((edit.uri, hunk) for hunk in edit.hunks)][-MAX_REJECTED:]
        self._dismissed_at = self.history.number

    async def _answer_in_time(self, request: EditRequest) -> Answer:
        uri = request.document.uri
        if self._newest.get(uri) is not request:
            return CHANGED
        left = request.received + self._context.settings().next_edit_budget_ms / 1000 - now()
        finding = self._finding[uri] = asyncio.ensure_future(self._find(request))
        try:
            await asyncio.wait((finding,), timeout=max(0.0, left))
            if not finding.done():
                return "No edit was found within codespec.nextEditBudgetMs."
            return CHANGED if finding.cancelled() else finding.result()
        finally:
            finding.cancel()

    async def _find(self, request: EditRequest) -> Answer:
        """Return the next edit. A change of the document or a newer request cancels this coroutine."""
        document = request.document
        await self._context.refresh(document)
        reason = self._why_not_here(request) or self._why_not_now(request)
        if reason:
            return reason
        known = self._pending.get(document.uri)
        answer: Answer = self._suggest(request, known.source, known.hunks) if known is not None else NONE
        if isinstance(answer, str):
            changes = [each for each in self.history.changes() if each.uri == document.uri]
            repeats = await find_repeats(changes, list(document.buffer.lines), document.syntax.same_name)
            answer = self._suggest(request, "rename", repeats)
        if not isinstance(answer, str) or not self._context.settings().next_edit_model:
            return answer
        predicted = await self._ask_model(request)
        return answer if isinstance(predicted, str) and answer != NONE else predicted

    async def _ask_model(self, request: EditRequest) -> Answer:
        """Return the model's edit at the cursor, else at other places that the last change concerns."""
        document, row = request.document, request.position.row
        reason, known = await self.model.why_not(), self.history.changes()
        changes = [each for each in known if self._may_send(each, document) and may_be_sent(each)]
        if reason or changes[-1:] != known[-1:]:
            return reason or SECRET
        here = self._anchors.get(document.uri, row)
        if not (here - ABOVE <= row <= here + BELOW and here < len(document.buffer.lines)):
            here = row
        self._anchors[document.uri] = here
        answer = await self._predict(request, [here], changes)
        last = changes[-1] if changes[-1].uri == document.uri else None
        others = other_places(last, document.buffer, here, [each for each, _ in request.problems])
        return await self._predict(request, others, changes) if isinstance(answer, str) and others else answer

    async def _predict(self, request: EditRequest, places: Sequence[int], changes: Sequence[Change]) -> Answer:
        end = request.received + (self._context.settings().next_edit_budget_ms - OVERHEAD_MS) / 1000
        hunks, reason = await self.model.find(request, places, changes, end)
        hidden, cursor = secret_rows(request.document.buffer.text), request.position.row
        kept = [
            hunk
            for hunk in hunks
            if not hunk.start_row == hunk.end_row <= cursor  # models repeat lines from below
            and hidden.isdisjoint(range(hunk.start_row, hunk.end_row + 1))
        ]
        return self._suggest(request, "model", kept) if kept else reason or HIDDEN

    def _may_send(self, change: Change, document: Document) -> bool:
        other = self._context.documents.get(change.uri)
        return change.uri == document.uri or (other is not None and self._context.may_send(other))

    def _suggest(self, request: EditRequest, source: Source, hunks: Sequence[Hunk]) -> Answer:
        """Return an edit with the hunks that may be shown, starting with the nearest hunk below the cursor."""
        document, row = request.document, request.position.row
        rejected = [hunk for uri, hunk in self._rejected if uri == document.uri]
        hidden = {hunk: why_hidden(hunk, document.uri, document.buffer, self.history, rejected) for hunk in hunks}
        kept = sorted((hunk for hunk in hunks if not hidden[hunk]), key=lambda hunk: (hunk.start_row < row, hunk))
        if not kept:
            self._pending.pop(document.uri, None)
            return next(iter(hidden.values()), NONE)
        edit = NextEdit(next(self._names), document.uri, document.version, kept, source)
        self._pending[document.uri] = self._known[edit.id] = edit
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return edit

    def _why_not_here(self, request: EditRequest) -> str:
        if self._context.settings().next_edit == "off":
            return "Next edits are switched off (codespec.nextEdit)."
        if request.document.is_cell:
            return "The cells of notebooks get no next edits."
        lines, row = request.document.buffer.lines, request.position.row
        near = lines[max(0, row - LONG_NEAR) : row + LONG_NEAR]
        long = "The lines at the cursor are too long." if any(len(line) > MAX_LINE for line in near) else ""
        return self._why_not(request.document) or long

    def _why_not_now(self, request: EditRequest) -> str:
        if not self.history.changes():
            return "Nothing was edited in the last five minutes."
        if request.trigger in ALWAYS:
            return ""
        if self.history.undone:
            return "The last edit restored an earlier text."
        if self.history.is_bulk:
            return "Too much was changed at once to have been typed."
        if self._dismissed_at == self.history.number:
            return "The last suggestion was dismissed, and nothing was edited since."
        if request.trigger == "moved" and now() - self.history.edited_at > MOVE_WINDOW_S:
            return f"The last edit is more than {MOVE_WINDOW_S:.0f} seconds old."
        return ""

    def _supersede(self, uri: str) -> None:
        self._newest.pop(uri, None)
        finding = self._finding.pop(uri, None)
        if finding is not None:
            finding.cancel()


def other_places(last: Change | None, buffer: Buffer, here: int, problems: Sequence[int]) -> list[int]:
    """Return up to MAX_OTHERS rows more than APART rows from `here` and from each other.

    Rows with a word that the last change removed come before the rows `problems`; each group begins below `here`.
    """
    old, new = (set(_WORD.findall("".join(lines))) for lines in ((last.old, last.new) if last else ("", "")))
    words = [re.escape(word) for word in sorted(old - new) if len(word) >= MIN_WORD]
    removed = re.compile(rf"\b(?:{'|'.join(words)})\b")
    rows = [row for row, line in enumerate(buffer.lines) if removed.search(line)] if words else []
    places: list[int] = []
    for group in (rows, problems):
        for row in sorted(group, key=lambda row: (row < here, abs(row - here))):
            if 0 <= row < len(buffer.lines) and all(abs(row - each) > APART for each in (here, *places)):
                places.append(row)
    return places[:MAX_OTHERS]
