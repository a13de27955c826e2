"""Ask the daemon's model for the next edit, if it has one and its model was trained for that.

A daemon that can't is asked again only when it may have changed. No daemon is started for an edit.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from codespec.api.body import ChangeBody, EditBody
from codespec.api.limits import MAX_CHANGE, MAX_COUNT, MAX_NAME, MAX_PATH, MAX_PROBLEMS, MAX_SIDE
from codespec.errors import Absent, DaemonError
from codespec.exclusions.secret_text import secret_rows, without_secrets
from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.daemon import Daemon
from codespec_lsp.documents import Document
from codespec_lsp.edit_filter import split_hunk
from codespec_lsp.edit_types import Change, Hunk
from codespec_lsp.prompt import clean

CHECK_AFTER = 60.0  # seconds after which a daemon without edits is looked at again
ROWS, STEP = 400, 100  # rows sent on each side of the places; their start moves in steps
MAX_EVENTS = 256  # of one answer
MAX_CACHED = 16
ABSENT = "No daemon runs, so no model predicts edits."
STARTING = "The daemon is starting, so no model predicts edits yet."
UNTRAINED = "The daemon's model has no format for edits, so it predicts none."
TOO_OLD = "The daemon is of a version without edits: restart the daemon."
TOO_LONG = "The lines around the cursor are too long to be sent."
ENDLESS = "The model's answer did not end."
BROKEN = "The model's answer broke off."

Answer = tuple[list[Hunk], str]  # of one request: hunks, and why there are none


@dataclass(frozen=True, slots=True)
class Sought:
    """What to ask for: the next edit of a document at `places`, after `changes`, the oldest first.

    `name` is the daemon's name for the document, `path` the one that a model sees.
    """

    document: Document
    name: str
    path: str
    cursor: TextPosition
    places: Sequence[int]
    changes: Sequence[Change]
    paths: Sequence[str]  # of the changes
    problems: Sequence[tuple[int, str]] = ()


class EditModel:
    """The model of one client's daemon. `clock` returns seconds."""

    def __init__(self, daemon: Daemon, clock: Callable[[], float]) -> None:
        self._daemon, self._clock = daemon, clock
        self._reason: str | None = None  # why the daemon has no edits; "" if it has; None if unknown
        self._checked = 0.0
        self._cached: OrderedDict[str, Answer] = OrderedDict()

    def forget(self) -> None:
        """Forget what is known of the daemon, because it may be another one."""
        self._reason = None

    async def why_not(self) -> str:
        """Return the reason why the daemon predicts no edits, or ""."""
        if self._reason is None or (self._reason and self._clock() - self._checked > CHECK_AFTER):
            try:
                about = (await self._daemon.stats()).get("daemon", {})
            except Absent:
                return ABSENT
            except DaemonError as error:
                return str(error)
            if about.get("state") not in ("ready", "idle"):
                return STARTING
            self._checked = self._clock()
            self._reason = "" if about.get("edit_format") else UNTRAINED if "edit_format" in about else TOO_OLD
        return self._reason

    async def find(self, sought: Sought, left: float) -> Answer:
        """Return the model's hunks at the places, within `left` seconds, or the reason why there are none."""
        body = edit_body(sought)
        if isinstance(body, str):
            return [], body
        key = json.dumps(body)
        known = self._cached.get(key)
        if known is not None:
            return known
        body["deadline_ms"] = max(1.0, left * 1000)
        try:
            answer, complete = await self._read(body, sought.document.buffer)
        except Absent:
            self.forget()
            return [], ABSENT
        except DaemonError as error:
            self._reason = TOO_OLD if error.status == 404 else self._reason
            return [], str(error)
        if complete:
            self._cached[key] = answer
            while len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        return answer

    async def _read(self, body: EditBody, buffer: Buffer) -> tuple[Answer, bool]:
        """Return the answer for all places, and whether it is complete: another request would get no further."""
        hunks: dict[int, list[dict[str, Any]]] = {place: [] for place in range(len(body["places"]))}
        found: list[Hunk] = []
        reason, complete, count = "", True, 0
        async with aclosing(self._daemon.edits(body)) as events:
            async for name, value in events:
                count += 1
                if count > MAX_EVENTS:
                    return ([], ENDLESS), False
                place = value.get("place")
                if name == "edit" and place in hunks:
                    hunks[place].append(value)
                elif name == "done" and place in hunks:
                    ended = hunks.pop(place)
                    if value.get("reason"):
                        reason = str(value["reason"])
                        complete = complete and value.get("unchanged") is True
                    else:
                        found += read_hunks(ended, value, buffer)
        if hunks:
            return ([], BROKEN), False
        return (found, "" if found else reason), complete


def edit_body(sought: Sought) -> EditBody | str:
    """Return the request, or why there is none. It is the same for the same text, places and changes.

    Lines with secrets are sent blank, and changes with secrets not at all.
    """
    lines = sought.document.buffer.lines
    first = max(0, min(sought.places) - ROWS) // STEP * STEP
    last = (max(sought.places) + ROWS) // STEP * STEP + STEP
    text = _rows_text(lines[first:last])
    if len(text) > MAX_SIDE:
        first, last = max(0, min(sought.places) - STEP), max(sought.places) + STEP
        text = _rows_text(lines[first:last])
    if len(text) > MAX_SIDE:
        return TOO_LONG
    body: EditBody = {
        "document": sought.name,
        "language": clean(sought.document.language_id)[:MAX_NAME],
        "path": clean(sought.path)[-MAX_PATH:],
        "text": without_secrets(text),
        "first_row": first,
        "places": list(sought.places),
        "history": [_change(change, path) for change, path in zip(sought.changes, sought.paths, strict=True)],
    }
    cursor = sought.cursor
    if first <= cursor.row < min(last, len(lines)):
        row = body["text"].split("\n")[cursor.row - first]
        body["cursor"] = {"row": cursor.row, "column": min(cursor.column, len(row))}
    problems = [(row, message) for row, message in sought.problems if 0 <= row <= MAX_COUNT][:MAX_PROBLEMS]
    if problems:
        body["diagnostics"] = [{"row": row, "message": clean(message)[:MAX_PATH]} for row, message in problems]
    return body


def may_be_sent(change: Change) -> bool:
    """Return whether a change fits in a request, and no secret stands near it.

    A line of a key is not known as such without the lines around it.
    """
    fits = max(len(change.old), len(change.new)) < MAX_CHANGE
    return fits and not any(map(secret_rows, (change.before, change.after, change.old, change.new)))


def read_hunks(events: Sequence[dict[str, Any]], window: dict[str, Any], buffer: Buffer) -> list[Hunk]:
    """Return a place's hunks with the document's line ends, without those outside its window or the document."""
    start, end = window.get("start_row"), window.get("end_row")
    hunks: list[Hunk] = []
    for event in events:
        match event:
            case {"start_row": int(first), "end_row": int(last), "text": str(text)}:
                if not (isinstance(start, int) and isinstance(end, int) and start <= first <= last <= end):
                    continue
                old = buffer.lines[first:last]
                if last > len(buffer.lines):
                    continue
                if old and not old[-1]:  # the empty row after the last line break
                    old.pop()
                hunks += split_hunk(first, old, buffer.whole_lines(text.replace("\n", buffer.newline)))
    return hunks


def _rows_text(lines: Sequence[str]) -> str:
    """Return lines as the daemon counts them: each ends with \\n, whatever its own end is."""
    return clean("".join(line.rstrip("\r\n") + "\n" if line.endswith(("\n", "\r")) else line for line in lines))


def _change(change: Change, path: str) -> ChangeBody:
    old, new = (clean(text).replace("\r\n", "\n").replace("\r", "\n") for text in (change.old, change.new))
    body: ChangeBody = {"path": clean(path)[-MAX_PATH:], "row": change.row, "old": old, "new": new}
    if change.predicted:
        body["predicted"] = True
    return body
