"""codespec's own endpoint, for its language server.

Reads strict fields and streams server-sent events. A newer request for a document supersedes the older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields as fields_of
from typing import Any

from aiohttp import web
from codespec_grammars import Context, Cursor

from codespec import __version__
from codespec.contract.body import CompletionBody, CursorBody, FileBody, LookupBody
from codespec.contract.limits import MOST_FILE_TEXT
from codespec.contract.openapi import describe
from codespec.contract.types import CompletionRequest, Event, Owner, Snippet, event_to_json
from codespec.engine.queue import Priority
from codespec.errors import CodespecError, RequestError
from codespec.secret_files import is_secret
from codespec.server.daemon import DAEMON
from codespec.server.dialects.replies import stream
from codespec.server.dialects.requests import read_max_tokens
from codespec.server.handles import RequestHandle
from codespec.server.scopes import SCOPES
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse

SHARED = frozenset(item.name for item in fields_of(CompletionRequest))  # fields that the engine reads as they are sent


async def complete(request: web.Request) -> web.StreamResponse:
    """Stream text, rounds and the end. An error before the first event is a plain HTTP error."""
    with await read_fields(request) as fields:
        handle = read_request(fields, request.app[DAEMON].ready().context)
        ids = fields.flag("token_ids")

    def encoded(event: Event) -> list[bytes]:
        name, data = event_to_json(event, handle.notes, token_ids=ids)
        return [sse(data, name)]

    return await stream(request, [handle], event_stream(request), encoded, encode_error)


async def look_up_in(request: web.Request) -> web.Response:
    """Replace the files that completions of a document may copy drafts from.

    The models do not read them, so they affect only the speed of a completion, never its tokens.
    """
    with await read_fields(request) as fields:
        document, files = read_files(fields)
    daemon = request.app[DAEMON]
    engine, texts = daemon.loaded().engine, [file.text.encode() for file in files]
    owner = Owner(await request.app[SCOPES].of(request), document)

    def keep() -> None:
        daemon.loaded()  # the daemon may be stopping by now; then refuse the texts
        engine.look_up_in(owner, texts)

    await daemon.engine_thread.call(keep)
    return reply({"files": len(texts), "bytes": sum(map(len, texts))})


def read_files(fields: Fields) -> tuple[str, tuple[Snippet, ...]]:
    """Read a document's name and its files. Raise RequestError for the first unknown or invalid field."""
    body = fields.read(LookupBody)
    files = _snippets("files", body.get("files", ()))
    if not body["document"]:
        raise RequestError("document must not be empty: name the document that the files are for.", "document")
    if sum(len(file.text) for file in files) > MOST_FILE_TEXT:
        raise RequestError(f"files must have at most {MOST_FILE_TEXT} characters together: send fewer.", "files")
    return body["document"], files


def read_request(fields: Fields, context: int) -> RequestHandle:
    """Read a request. Raise RequestError for the first unknown or invalid field.

    A raw request gets the number of tokens that it requests, or an error; others are limited to half the context.
    """
    body = fields.read(CompletionBody)
    notes: list[str] = []
    shape = body.get("shape", "auto")
    raw = shape == "raw"
    if body.get("warm_up"):
        tokens = 0
    elif raw:
        tokens = body.get("max_tokens", 64)
    else:
        tokens = read_max_tokens(fields, "max_tokens", context, notes, least=0)
    settled: dict[str, Any] = {
        "shape": shape,
        "heal": body.get("heal", not raw),
        "max_tokens": tokens,
        "deadline_ms": body.get("deadline_ms") or None,
        "prediction": body.get("draft", ""),
        "snippets": _snippets("snippets", body.get("snippets", ())),
        "cursor": _cursor(body["cursor"]) if "cursor" in body else None,
    }
    shared: dict[str, Any] = {name: value for name, value in body.items() if name in SHARED}
    request = CompletionRequest(**{**shared, **settled})
    return RequestHandle(request, Priority.INTERACTIVE if tokens else Priority.WARM_UP, notes=notes)


def _snippets(name: str, files: Iterable[FileBody]) -> tuple[Snippet, ...]:
    """Return the files of a field. Raise RequestError for a file whose name suggests secrets."""
    snippets = tuple(Snippet(file.get("path", ""), file["text"]) for file in files)
    for place, snippet in enumerate(snippets):
        if is_secret(snippet.path):
            label = f"{name}[{place}].path"
            raise RequestError(f"{label} names a file that may hold secrets: do not send it as context.", label)
    return snippets


def _cursor(sent: CursorBody) -> Cursor:
    context = Context(sent.get("context", Context.UNKNOWN))
    return Cursor(context, "".join(sent.get("open_brackets", ())), sent.get("indent", 0))


def encode_error(error: CodespecError) -> bytes:
    """Encode an error after the first event."""
    field = error.field if isinstance(error, RequestError) else ""
    return sse({"field": field, "message": str(error)}, "error")


async def openapi(request: web.Request) -> web.Response:
    """Return the OpenAPI description of these endpoints."""
    return reply(describe(__version__))


ROUTES = [
    web.post("/v1/codespec/complete", complete),
    web.post("/v1/codespec/files", look_up_in),
    web.get("/openapi.json", openapi),
]
