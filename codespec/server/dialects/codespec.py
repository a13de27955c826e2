"""codespec's own endpoints, which refuse unknown fields: completions, next edits, lookup files, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any

from aiohttp import web
from codespec_grammars import Context, Cursor
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from codespec import __version__
from codespec.api.body import CompletionBody, EditBody, FileBody, LookupBody, describe
from codespec.api.limits import MAX_FILE_TEXT, changes_white_space, is_revert
from codespec.api.types import CompletionRequest, DoneEvent, Event, Owner, Snippet, Stats, TextEvent, event_to_json
from codespec.engine.job import Priority, RequestHandle
from codespec.errors import CodespecError, RequestError
from codespec.exclusions.secrets import is_secret, without_secrets
from codespec.server.daemon import DAEMON, Daemon, Loaded
from codespec.server.dialects.shared import read_max_tokens, stream
from codespec.server.metrics import DaemonCollector
from codespec.server.middleware import SCOPES, own_key
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse
from codespec.text.edit_formats import AnswerReader, EditFormat, LineHunk, Window
from codespec.text.edit_prompt import Change, EditContext, build_edit_prompt

UNCHANGED = "The model leaves these lines as they are."
REVERT = "The model's edit would undo a recent change."
CUT = {
    "length": "The answer was cut at max_tokens before it ended.",
    "deadline": "The answer was cut at deadline_ms before it ended.",
    "cancelled": "A newer request for this document replaced this one.",
}
SHARED = frozenset(item.name for item in fields_of(CompletionRequest))  # names of fields that bodies may share


async def complete(request: web.Request) -> web.StreamResponse:
    """Stream the events of a completion. An error before the first event is sent as an HTTP error."""
    with await read_fields(request) as fields:
        handle = read_request(fields, request.app[DAEMON].ready().context)
        ids = fields.flag("token_ids")

    def encoded(event: Event) -> list[bytes]:
        name, data = event_to_json(event, handle.notes, token_ids=ids)
        return [sse(data, name)]

    return await stream(request, [handle], event_stream(request), encoded, encode_error)


async def look_up_in(request: web.Request) -> web.Response:
    """Replace the files that drafts for a document may copy from, and reply with their number and size."""
    with await read_fields(request) as fields:
        body = fields.read(LookupBody)
        document, files = body["document"], read_snippets("files", body.get("files", ()))
    if not document:
        raise RequestError("document must not be empty: name the document that the files are for.", "document")
    if sum(len(file.text) for file in files) > MAX_FILE_TEXT:
        raise RequestError(f"files must have at most {MAX_FILE_TEXT} characters in total: send fewer files.", "files")
    daemon = request.app[DAEMON]
    daemon.loaded()  # raises ServeError if no requests are accepted
    texts = [file.text.encode() for file in files]
    owner = Owner(await request.app[SCOPES].of(request), document)

    def keep(loaded: Loaded) -> None:
        if loaded.engine is not None:  # an upstream server gets no drafts
            loaded.engine.look_up_in(owner, texts)

    await daemon.call(keep)
    return reply({"files": len(texts), "bytes": sum(map(len, texts))})


def read_request(fields: Fields, context: int) -> RequestHandle:
    """Read a request. Raise RequestError for the first unknown or invalid field."""
    body = fields.read(CompletionBody)
    notes: list[str] = []
    shape = body.get("shape", "auto")
    raw = shape == "raw"
    if body.get("warm_up"):
        tokens = 0
    elif raw:
        tokens = body.get("max_tokens", 64)  # too many are an error later, not cut
    else:
        tokens = read_max_tokens(fields, "max_tokens", context, notes, least=0)
    cursor, sent = None, body.get("cursor")
    if sent is not None:
        syntax = Context(sent.get("context", Context.UNKNOWN))
        cursor = Cursor(syntax, "".join(sent.get("open_brackets", ())), sent.get("indent", 0))
    converted: dict[str, Any] = {
        "shape": shape,
        "heal": body.get("heal", not raw),
        "max_tokens": tokens,
        "deadline_ms": body.get("deadline_ms") or None,
        "prediction": body.get("draft", ""),
        "snippets": read_snippets("snippets", body.get("snippets", ())),
        "cursor": cursor,
    }
    shared: dict[str, Any] = {name: value for name, value in body.items() if name in SHARED}
    return RequestHandle(CompletionRequest(**{**shared, **converted}), notes=notes)


def read_snippets(name: str, files: Iterable[FileBody]) -> tuple[Snippet, ...]:
    """Return the files of a field without lines that hold secrets. Raise RequestError for the path of a secret file."""
    snippets = tuple(Snippet(file.get("path", ""), without_secrets(file["text"])) for file in files)
    for place, snippet in enumerate(snippets):
        if is_secret(snippet.path):
            label = f"{name}[{place}].path"
            raise RequestError(f"{label} names a file that may hold secrets: do not send it as context.", label)
    return snippets


def encode_error(error: CodespecError) -> bytes:
    field = error.field if isinstance(error, RequestError) else ""
    return sse({"field": field, "message": str(error)}, "error")


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A validated request for next edits. The model rewrites the lines around each of the `places`."""

    context: EditContext
    places: Sequence[int]  # rows of the document
    settings: dict[str, Any]  # fields of each place's CompletionRequest
    max_tokens: int | None


async def edit(request: web.Request) -> web.StreamResponse:
    """Stream the edits around each place of the request, and a `done` event for each place."""
    daemon = request.app[DAEMON]
    daemon.ready()
    with await read_fields(request) as fields:
        wanted = read_edit(fields)
    async with daemon.encoding:
        answers = await asyncio.to_thread(prepare, daemon, wanted)
    written = [(answer, answer.handle) for answer in answers if answer.handle is not None]

    def encoded(event: Event) -> list[bytes]:
        return [sse(data, name) for name, data in written[event.choice][0].read(event)]

    handles = [handle for _, handle in written]
    last = b"".join(sse(answer.end(answer.reason, Stats()), "done") for answer in answers if answer.handle is None)
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
    """Return an Answer for each place, with a request handle or with the reason why there is no request."""
    loaded = daemon.loaded()
    form = daemon.edit_format(loaded)
    return [_prepare_place(loaded, form, wanted, number, row) for number, row in enumerate(wanted.places)]


def _prepare_place(loaded: Loaded, form: EditFormat | str, wanted: EditRequest, number: int, row: int) -> Answer:
    if isinstance(form, str):
        return Answer(number, row, wanted.context, reason=f"The daemon suggests no edits ({form}).")
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
        prediction=prompt.prediction,  # the old lines, so unchanged lines cost little
        stop=prompt.stops,
        max_tokens=prompt.max_tokens,
        **wanted.settings,
    )
    handle = RequestHandle(request, Priority.EDIT, batch=wanted, window=prompt.window)
    return Answer(number, prompt.start_row, wanted.context, form, handle)


class Answer:
    """Converts the model's text for one place to edits of a window of lines, which begins at `row`.

    An edit is sent as soon as the model's text matches the old lines again. `reason` says why there is no `handle`.
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
        self._marks = (*form.markers, form.nothing) if form is not None else ()  # texts that code never contains
        self._edits = 0
        self._dropped = UNCHANGED  # why a whole answer has no edit
        self._states = [
            (change.row, change.new.split("\n")[:-1], change.old.split("\n")[:-1])
            for change in context.changes
            if change.path == context.path
        ]

    def read(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the data of each server-sent event for an engine event."""
        if isinstance(event, TextEvent):
            yield from self._send(self._reader.feed(event.text))
        elif isinstance(event, DoneEvent):
            done = event.completion
            if done.finish_reason == "stop":
                yield from self._send(self._reader.finish())
            dropped = "" if self._edits else self._dropped
            yield "done", self.end(self.reason or CUT.get(done.finish_reason, dropped), done.stats)

    def end(self, reason: str, stats: Stats) -> dict[str, Any]:
        rows = {"place": self.number, "start_row": self._rows[0], "end_row": self._rows[1]}
        return {**rows, "unchanged": reason == UNCHANGED, "reason": reason, "stats": asdict(stats)}

    def _send(self, hunks: Sequence[LineHunk]) -> Iterator[tuple[str, dict[str, Any]]]:
        for hunk in hunks:
            mark = next((mark for mark in self._marks if mark and any(mark in line for line in hunk.lines)), "")
            if mark and not self.reason:
                self.reason = UNCHANGED if mark == self._marks[-1] else f"The text contains {mark}, which is not code."
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


async def openapi(request: web.Request) -> web.Response:
    return reply(describe(__version__))


async def scrape(request: web.Request) -> web.StreamResponse:
    text = generate_latest(DaemonCollector(request.app[DAEMON]))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """Return the daemon's state and its metrics as JSON. A request with a key gets only this key's usage."""
    daemon = request.app[DAEMON]
    loaded = daemon.source.loaded
    about: dict[str, Any] = {"version": __version__, "state": daemon.state, "reason": daemon.reason}
    about["model"] = loaded.name if loaded else None
    about["edit_format"] = getattr(daemon.edit_format(loaded), "name", "") if loaded else ""
    engine: dict[str, Any] = {"mode": None, "kernel": "", "variance": "", "notes": []}
    if loaded:
        prompts = {"context": loaded.context, "prompt_budget": loaded.prompt_budget}
        engine = {name: getattr(loaded, name) for name in engine} | prompts
    if daemon.source.remote is not None:
        engine["upstream"] = daemon.source.remote
    families = [_as_json(family) for family in DaemonCollector(daemon, own_key(request)).collect()]
    return reply({"daemon": {**about, **engine}, "families": families}, headers={"Cache-Control": "no-store"})


def _as_json(family: Metric) -> dict[str, Any]:
    samples = [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in family.samples]
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return {"name": name, "type": family.type, "help": family.documentation, "samples": samples}


ROUTES = [
    web.post("/v1/codespec/complete", complete),
    web.post("/v1/codespec/edit", edit),
    web.post("/v1/codespec/files", look_up_in),
    web.get("/openapi.json", openapi),
    web.get("/metrics", scrape),
    web.get("/v1/codespec/stats", stats),
]
