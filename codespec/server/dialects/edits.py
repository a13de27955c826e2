"""Next edits: `POST /v1/codespec/edit` looks for the next change around given rows of a document.

The daemon writes the prompt, because only it knows the model. The old lines are the answer's prediction, so lines that
do not change cost little. Edits are streamed as server-sent events, each once the answer agrees with the old lines
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from codespec.api.body import EditBody
from codespec.api.limits import changes_white_space, is_revert
from codespec.api.types import CompletionRequest, DoneEvent, Event, Stats, TextEvent
from codespec.engine.job import Priority, RequestHandle
from codespec.errors import RequestError
from codespec.exclusions.secrets import is_secret, without_secrets
from codespec.server.daemon import DAEMON, Daemon, Loaded
from codespec.server.dialects.codespec import encode_error, read_snippets
from codespec.server.dialects.replies import stream
from codespec.server.wire import Fields, event_stream, read_fields, sse
from codespec.text.edit_formats import AnswerReader, EditFormat, LineHunk, Window
from codespec.text.edit_prompt import Change, EditContext, build_edit_prompt

EDIT = "/v1/codespec/edit"
UNCHANGED = "The model leaves these lines as they are."
REVERT = "The model takes back what was just changed."
CUT = {
    "length": "The answer was cut at max_tokens before it ended.",
    "deadline": "The answer was cut at deadline_ms before it ended.",
    "cancelled": "A newer request for this document replaced this one.",
}


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A checked request. `places` are rows of the document."""

    context: EditContext
    places: Sequence[int]
    settings: dict[str, Any]  # of the completion request
    max_tokens: int | None


async def edit(request: web.Request) -> web.StreamResponse:
    """Stream the edits around each place and the end of each place."""
    daemon = request.app[DAEMON]
    daemon.ready()
    with await read_fields(request) as fields:
        wanted = read_edit(fields)
    async with daemon.encoding:
        answers = await asyncio.to_thread(prepare, daemon, wanted)
    written = [answer for answer in answers if answer.handle is not None]
    unasked = [answer for answer in answers if answer.handle is None]

    def encoded(event: Event) -> list[bytes]:
        return [sse(data, name) for name, data in written[event.choice].read(event)]

    handles = [answer.handle for answer in written if answer.handle is not None]
    last = b"".join(sse(answer.end(answer.reason, Stats()), "done") for answer in unasked)
    return await stream(request, handles, event_stream(request), encoded, encode_error, last)


def read_edit(fields: Fields) -> EditRequest:
    """Read a request. Raise RequestError for the first unknown or invalid field."""
    body = fields.read(EditBody)
    lines, first_row = body["text"].split("\n"), body.get("first_row", 0)
    for number, row in enumerate(body["places"]):
        if not first_row <= row < first_row + len(lines):
            label, last = f"places[{number}]", first_row + len(lines) - 1
            raise RequestError(f"{label} must be a row of the text, from {first_row} to {last}.", label)
    cursor = (body["cursor"]["row"], body["cursor"]["column"]) if "cursor" in body else None
    if cursor is not None and first_row <= cursor[0] < first_row + len(lines):
        longest = len(lines[cursor[0] - first_row])
        if cursor[1] > longest:
            sentence = f"cursor.column must be at most {longest}, the length of that row."
            raise RequestError(sentence, "cursor.column")
    changes = []
    for number, change in enumerate(body.get("history", ())):
        if is_secret(change["path"]):
            label = f"history[{number}].path"
            raise RequestError(f"{label} names a file that may hold secrets: do not send it as context.", label)
        old, new = without_secrets(change["old"]), without_secrets(change["new"])
        changes.append(Change(change["path"], change["row"], old, new, change.get("predicted", False)))
    context = EditContext(
        path=body["path"],
        lines=lines,
        first_row=first_row,
        language=body.get("language", ""),
        cursor=cursor,
        changes=changes,
        snippets=[(item.path, item.text) for item in read_snippets("snippets", body.get("snippets", ()))],
        problems=[(problem["row"], problem["message"]) for problem in body.get("diagnostics", ())],
    )
    settings = {
        "path": body["path"],
        "language": body.get("language", ""),
        "document": body.get("document", ""),
        "deadline_ms": body.get("deadline_ms") or None,
        "speculate": body.get("speculate"),
    }
    return EditRequest(context, body["places"], settings, body.get("max_tokens"))


def prepare(daemon: Daemon, wanted: EditRequest) -> list[Answer]:
    """Return an answer for each place, with a request or with the reason why there is none."""
    loaded = daemon.loaded()
    form = daemon.edit_format(loaded)
    return [_prepare_place(loaded, form, wanted, number, row) for number, row in enumerate(wanted.places)]


def _prepare_place(loaded: Loaded, form: EditFormat | str, wanted: EditRequest, number: int, row: int) -> Answer:
    if isinstance(form, str):
        return Answer(number, row, wanted.context, reason=f"There are no edits here ({form}).")
    prompt = build_edit_prompt(
        loaded.tokenizer,
        form,
        wanted.context,
        row,
        most=loaded.context,
        budget=loaded.prompt_budget,
        max_tokens=wanted.max_tokens,
    )
    if isinstance(prompt, str):
        return Answer(number, row, wanted.context, reason=prompt)
    request = CompletionRequest(
        prefix=prompt.text,
        prompt_ids=tuple(prompt.ids),
        ends_at_control=True,
        prediction=prompt.prediction,
        stop=prompt.stops,
        max_tokens=prompt.max_tokens,
        **wanted.settings,
    )
    handle = RequestHandle(request, Priority.EDIT, batch=wanted, window=prompt.window)
    return Answer(number, prompt.start_row, wanted.context, form, handle)


class Answer:
    """The answer for one place: its request, and its text as hunks. Without a request, `reason` is a sentence.

    The window begins at `row`.
    """

    def __init__(
        self,
        number: int,
        row: int,
        context: EditContext,
        form: EditFormat | None = None,
        handle: RequestHandle | None = None,
        reason: str = "",
    ) -> None:
        self.number, self.handle, self.reason = number, handle, reason
        self._last_row = context.first_row + len(context.lines)
        self._reader = AnswerReader(handle.window if handle and handle.window else Window())
        self._rows = (row, row + len(self._reader.old))
        self._marks = (*form.markers, form.nothing) if form is not None else ()  # that no code holds
        self._edits = 0
        self._dropped = UNCHANGED  # why there is no edit after a whole answer
        self._states = [
            (change.row, change.new.split("\n")[:-1], change.old.split("\n")[:-1])
            for change in context.changes
            if change.path == context.path
        ]

    def read(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the data of each event to send."""
        if isinstance(event, TextEvent):
            yield from self._send(self._reader.feed(event.text))
        elif isinstance(event, DoneEvent):
            done = event.completion
            if done.finish_reason == "stop":
                yield from self._send(self._reader.finish())
            cut = CUT.get(done.finish_reason, "")
            yield "done", self.end(self.reason or cut or ("" if self._edits else self._dropped), done.stats)

    def end(self, reason: str, stats: Stats) -> dict[str, Any]:
        """Return the data of the last event."""
        start, end = self._rows
        unchanged = reason == UNCHANGED
        rows = {"place": self.number, "start_row": start, "end_row": end}
        return {**rows, "unchanged": unchanged, "reason": reason, "stats": stats.as_dict()}

    def _send(self, hunks: Sequence[LineHunk]) -> Iterator[tuple[str, dict[str, Any]]]:
        for hunk in hunks:
            mark = next((mark for mark in self._marks if mark and any(mark in line for line in hunk.lines)), "")
            if mark and not self.reason:
                self.reason = UNCHANGED if mark == self._marks[-1] else f"The answer holds {mark}, which is no code."
            if self.reason:
                return
            start, end = self._rows[0] + hunk.start, self._rows[0] + hunk.end
            old = self._reader.old[hunk.start : hunk.end]
            if changes_white_space(old, hunk.lines):
                continue
            if is_revert(start, old, hunk.lines, self._states):
                self._dropped = REVERT
                continue
            self._edits += 1
            text = "".join(f"{line}\n" for line in hunk.lines)
            if end == self._last_row:  # the document's last row has no line break
                text = text.removesuffix("\n")
            yield "edit", {"place": self.number, "start_row": start, "end_row": end, "text": text}


ROUTES = [web.post(EDIT, edit)]
