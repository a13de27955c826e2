"""Ask a running daemon's model for the next edit, if the model was trained to predict edits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from codespec.api.body import ChangeBody, EditBody
from codespec.api.limits import MAX_CHANGE, MAX_COUNT, MAX_NAME, MAX_PATH, MAX_PROBLEMS, MAX_SIDE
from codespec.errors import Absent, DaemonError
from codespec.exclusions.secrets import secret_rows, without_secrets
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.daemon import Daemon
from codespec_lsp.documents import Document, now
from codespec_lsp.line_edits import Change, Hunk, split_hunk
from codespec_lsp.prompt import RequestContext, clean

NEXT_EDIT, INLINE_EDIT = "codespec/nextEdit", "textDocument/copilotInlineEdit"  # methods of requests for edits
RECHECK_S = 60.0  # seconds after which a daemon that predicts no edits is checked again
ROWS, STEP = 400, 100  # rows sent on each side of the places; the first one is a multiple of STEP
MAX_EVENTS = 256  # in one answer
ABSENT = "No daemon is running, so no model predicts edits."
TOO_OLD = "This version of the daemon predicts no edits: restart the daemon."

Answer = tuple[list[Hunk], str]  # the hunks, and the reason if there are none


@dataclass(eq=False, slots=True)
class EditRequest:
    """A client's request for the next edit; it arrived at the event loop's time `received`.

    `trigger` is "typing", "moved", "left insert", "accepted" or "invoked"; other values count as "typing". `problems`
    are the rows and messages of the client's diagnostics.
    """

    document: Document
    position: TextPosition
    trigger: str
    problems: Sequence[tuple[int, str]]
    received: float


class EditModel:
    """Asks the model of one client's daemon for edits."""

    def __init__(self, daemon: Daemon, context: RequestContext) -> None:
        self._daemon, self._context = daemon, context
        self._reason: str | None = None  # why the daemon predicts no edits; "" if it does; None if unknown
        self._checked = 0.0

    def forget(self) -> None:
        """Forget whether the daemon predicts edits, because the settings may now name another daemon."""
        self._reason = None

    async def why_not(self) -> str:
        """Return why the daemon predicts no edits, or ""."""
        if self._reason is None or (self._reason and now() - self._checked > RECHECK_S):
            try:
                about = (await self._daemon.stats()).get("daemon", {})
            except Absent:
                return ABSENT
            except DaemonError as error:
                return str(error)
            if about.get("state") not in ("ready", "idle"):
                return "The daemon is starting, so no model predicts edits yet."
            self._checked = now()
            untrained = "The daemon's model has no format for edits, so it predicts none."
            self._reason = "" if about.get("edit_format") else untrained if "edit_format" in about else TOO_OLD
        return self._reason

    async def find(self, request: EditRequest, places: Sequence[int], changes: Sequence[Change], end: float) -> Answer:
        """Ask the model for hunks at the rows `places`, with a deadline at the event loop's time `end`."""
        body = edit_body(request, places, changes, self._context)
        if body is None:
            return [], "The lines around the cursor are too long to be sent."
        body["deadline_ms"] = max(1.0, (end - now()) * 1000)
        try:
            return await self._read(body, request.document.buffer)
        except Absent:
            self.forget()
            return [], ABSENT
        except DaemonError as error:
            self._reason = TOO_OLD if error.status == 404 else self._reason
            return [], str(error)

    async def _read(self, body: EditBody, buffer: Buffer) -> Answer:
        hunks: dict[int, list[dict[str, Any]]] = {place: [] for place in range(len(body["places"]))}
        found: list[Hunk] = []
        reason, count = "", 0
        async with aclosing(self._daemon.edits(body)) as events:
            async for name, value in events:
                count += 1
                if count > MAX_EVENTS:
                    return [], "The model's answer did not end."
                place = value.get("place")
                if name == "edit" and place in hunks:
                    hunks[place].append(value)
                elif name == "done" and place in hunks:
                    ended = hunks.pop(place)
                    reason = str(value.get("reason") or reason)
                    found += [] if value.get("reason") else read_hunks(ended, value, buffer)
        return ([], "The model's answer broke off.") if hunks else (found, "" if found else reason)


def edit_body(
    request: EditRequest, places: Sequence[int], changes: Sequence[Change], context: RequestContext
) -> EditBody | None:
    """Return the body of a request for edits at `places`, without secret lines, or None if the text is too long."""
    document, cursor = request.document, request.position
    lines = document.buffer.lines
    near, far = min(places), max(places)
    first, last = max(0, near - ROWS) // STEP * STEP, (far + ROWS) // STEP * STEP + STEP
    text = _rows_text(lines[first:last])
    if len(text) > MAX_SIDE:
        first, last = max(0, near - STEP), far + STEP
        text = _rows_text(lines[first:last])
    if len(text) > MAX_SIDE:
        return None
    problems = [(row, clean(message)[:MAX_PATH]) for row, message in request.problems if 0 <= row <= MAX_COUNT]
    body: EditBody = {
        "document": context.document_name(document),
        "language": clean(document.language_id)[:MAX_NAME],
        "path": context.shown(document.path),
        "text": without_secrets(text),
        "first_row": first,
        "places": list(places),
        "history": [_change_body(change, context.shown(change.path)) for change in changes],
        "diagnostics": [{"row": row, "message": message} for row, message in problems[:MAX_PROBLEMS]],
    }
    if first <= cursor.row < min(last, len(lines)):
        row = body["text"].split("\n")[cursor.row - first]
        body["cursor"] = {"row": cursor.row, "column": min(cursor.column, len(row))}
    return body


def _change_body(change: Change, path: str) -> ChangeBody:
    old, new = (clean("".join(lines)).replace("\r\n", "\n").replace("\r", "\n") for lines in (change.old, change.new))
    return {"path": path, "row": change.row, "old": old, "new": new, "predicted": change.predicted}


def may_be_sent(change: Change) -> bool:
    """Return whether a change fits in a request and has no secret nearby, because parts of a key look harmless."""
    old, new = "".join(change.old), "".join(change.new)
    return max(len(old), len(new)) < MAX_CHANGE and not any(map(secret_rows, (change.before, change.after, old, new)))


def read_hunks(events: Sequence[dict[str, Any]], window: dict[str, Any], buffer: Buffer) -> list[Hunk]:
    """Convert the events for one place to hunks. Drop hunks outside the place's window or the document."""
    start, end, hunks = window.get("start_row"), window.get("end_row"), list[Hunk]()
    if not isinstance(start, int) or not isinstance(end, int):
        return []
    for event in events:
        match event:
            case {"start_row": int(first), "end_row": int(last), "text": str(text)} if (
                start <= first <= last <= min(end, len(buffer.lines))
            ):
                old = buffer.lines[first:last]
                if old and not old[-1]:  # the empty row after the last line break
                    old.pop()
                hunks += split_hunk(first, old, buffer.whole_lines(text.replace("\n", buffer.newline)))
    return hunks


def _rows_text(lines: Sequence[str]) -> str:
    """Join lines into a text in which every line ending is \\n, because the daemon splits lines only at \\n."""
    return clean("".join(line.rstrip("\r\n") + "\n" if line.endswith(("\n", "\r")) else line for line in lines))
