"""codespec's own endpoint, for its language server.

Reads strict fields and streams server-sent events. A newer request for a document supersedes the older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web
from codespec_grammars import Context, Cursor
from codespec_grammars.contexts import NAMES

from codespec.contract.types import (
    MOST_PREDICTION,
    MOST_SIDE,
    CompletionRequest,
    DoneEvent,
    Event,
    Owner,
    RoundEvent,
    Snippet,
    Stats,
    TextEvent,
)
from codespec.engine.queue import Priority
from codespec.errors import CodespecError, RequestError
from codespec.secret_files import is_secret
from codespec.server.daemon import DAEMON
from codespec.server.dialects.replies import stream
from codespec.server.dialects.requests import MOST_SEED, read_choices, read_max_tokens
from codespec.server.handles import RequestHandle
from codespec.server.scopes import SCOPES
from codespec.server.wire import MOST_COUNT, Fields, event_stream, read_fields, reply, sse

MOST_OPEN = 1024  # brackets
FIELDS = (
    *("document", "version", "language", "path", "prefix", "prefix_offset", "suffix", "snippets", "cursor", "trigger"),
    *("n", "max_tokens", "deadline_ms", "shape", "temperature", "top_p", "seed", "stop", "speculate", "warm_up"),
    *("heal", "token_ids", "draft"),
)
SHAPES = ("auto", "line", "block", "raw")
MOST_FILES, MOST_FILE_TEXT = 64, 512 * 1024  # per document: number of files, and their total characters


async def complete(request: web.Request) -> web.StreamResponse:
    """Stream text, rounds and the end. An error before the first event is a plain HTTP error."""
    with await read_fields(request) as fields:
        handle = read_request(fields, request.app[DAEMON].ready().context)
        ids = fields.flag("token_ids")

    def encoded(event: Event) -> list[bytes]:
        return [encode(event, handle.notes, token_ids=ids)]

    return await stream(request, [handle], event_stream(request), encoded, encode_error)


async def look_up_in(request: web.Request) -> web.Response:
    """Replace the files that completions of a document may copy drafts from.

    The models do not read them, so they affect only the speed of a completion, never its tokens.
    """
    with await read_fields(request) as fields:
        fields.only(("document", "files"))
        document = fields.text("document", most=4096)
        if not document:
            raise RequestError("document must not be empty: name the document that the files are for.", "document")
        files = [_snippet(part) for part in fields.parts("files", MOST_FILES)]
    if sum(len(file.text) for file in files) > MOST_FILE_TEXT:
        raise RequestError(f"files must have at most {MOST_FILE_TEXT} characters together: send fewer.", "files")
    daemon = request.app[DAEMON]
    engine, texts = daemon.loaded().engine, [file.text.encode() for file in files]
    owner = Owner(await request.app[SCOPES].of(request), document)

    def keep() -> None:
        daemon.loaded()  # the daemon may be stopping by now; then refuse the texts
        engine.look_up_in(owner, texts)

    await daemon.engine_thread.call(keep)
    return reply({"files": len(texts), "bytes": sum(map(len, texts))})


def read_request(fields: Fields, context: int) -> RequestHandle:
    """Read a request. Raise RequestError for the first unknown or invalid field."""
    fields.only(FIELDS)
    fields.whole("version", 0, -MOST_COUNT - 1, MOST_COUNT)  # range of the language server protocol; for logs only
    fields.text("trigger", "", 64)
    deadline = fields.number("deadline_ms", 0, 0, 600_000)
    shape = fields.text("shape", "auto")
    if shape not in SHAPES:
        raise RequestError(f"shape must be one of {', '.join(SHAPES)}.", "shape")
    notes: list[str] = []
    tokens = 0 if fields.flag("warm_up") else _max_tokens(fields, shape, context, notes)
    request = CompletionRequest(
        prefix=fields.text("prefix", most=MOST_SIDE),
        suffix=fields.text("suffix", "", most=MOST_SIDE),
        path=fields.text("path", "", 4096),
        language=fields.text("language", "", 64),
        snippets=tuple(_snippet(part) for part in fields.parts("snippets", 64)),
        max_tokens=tokens,
        temperature=fields.number("temperature", 0.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        seed=fields.whole("seed", 0, -MOST_SEED - 1, MOST_SEED),
        n=read_choices(fields),
        stop=fields.texts("stop"),
        deadline_ms=deadline or None,
        speculate=fields.flag("speculate") if "speculate" in fields else None,
        shape=shape,  # type: ignore[arg-type]  # one of SHAPES
        heal=fields.flag("heal") if "heal" in fields else shape != "raw",
        document=fields.text("document", "", 4096),
        prefix_offset=fields.whole("prefix_offset", 0, 0, MOST_COUNT),
        prediction=fields.text("draft", "", most=MOST_PREDICTION),
        cursor=_cursor(fields),
    )
    return RequestHandle(request, Priority.INTERACTIVE if tokens else Priority.WARM_UP, notes=notes)


def _max_tokens(fields: Fields, shape: str, context: int, notes: list[str]) -> int:
    """Read `max_tokens`: a raw request gets the exact number or an error, others are limited to half the context."""
    if shape == "raw":
        return fields.whole("max_tokens", 64, 0, MOST_COUNT)
    return read_max_tokens(fields, "max_tokens", context, notes, least=0)


def _snippet(part: Fields) -> Snippet:
    part.only(("path", "text"))
    path = part.text("path", "", 4096)
    if is_secret(path):
        label = part.label("path")
        raise RequestError(f"{label} names a file that may hold secrets: do not send it as context.", label)
    return Snippet(path, part.text("text", most=MOST_SIDE))


def _cursor(fields: Fields) -> Cursor | None:
    """Read the syntax at the cursor as the language server reports it, or None if absent."""
    sent = fields.part("cursor")
    if sent is None:
        return None
    sent.only(("context", "open_brackets", "indent"))
    context, indent = sent.text("context", Context.UNKNOWN, 64), sent.whole("indent", 0, 0, MOST_COUNT)
    if context not in NAMES:
        raise RequestError(f"cursor.context must be one of {', '.join(Context)}.", "cursor.context")
    return Cursor(Context(context), "".join(sent.texts("open_brackets", MOST_OPEN)), indent)


def encode(event: Event, notes: Sequence[str] = (), *, token_ids: bool = False) -> bytes:
    """Encode an event. `notes` explain how the request was read; `token_ids` adds the ids to the last event."""
    name, value = to_json(event, notes)
    if token_ids and isinstance(event, DoneEvent):
        value["token_ids"] = list(event.completion.token_ids)
    return sse(value, name)


def encode_error(error: CodespecError) -> bytes:
    """Encode an error after the first event."""
    field = error.field if isinstance(error, RequestError) else ""
    return sse({"field": field, "message": str(error)}, "error")


def to_json(event: Event, notes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return an event's name and data."""
    if isinstance(event, TextEvent):
        return "text", {"choice": event.choice, "text": event.text}
    if isinstance(event, RoundEvent):
        return "round", _round(event)
    return "done", _done(event, notes)


def _round(event: RoundEvent) -> dict[str, Any]:
    return {
        "choice": event.choice,
        "source": event.source,
        "drafted": event.drafted,
        "accepted": event.accepted,
        "draft": event.draft,
        "accepted_text": event.accepted_text,
        "target_text": event.target_text,
        "reason": event.reason,
        "context": event.context,
        "length": event.length,
    }


def _done(event: DoneEvent, notes: Sequence[str]) -> dict[str, Any]:
    completion, stats = event.completion, event.completion.stats
    return {
        "choice": event.choice,
        "finish_reason": completion.finish_reason,
        "cached_tokens": stats.cached_tokens,
        "new_tokens": new_tokens(stats),
        "stats": {**stats.as_dict(), "notes": [*notes, *stats.notes]},
    }


def new_tokens(stats: Stats) -> int:
    """Return the number of prompt tokens that had to be computed."""
    return stats.prompt_tokens - stats.cached_tokens


ROUTES = [web.post("/v1/codespec/complete", complete), web.post("/v1/codespec/files", look_up_in)]
