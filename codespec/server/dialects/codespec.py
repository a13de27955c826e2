"""codespec's own endpoints: completions for its language server, lookup files, the daemon's numbers.

Fields are strict, and completions are streamed as server-sent events. A newer request for a document supersedes the
older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields as fields_of
from typing import Any

from aiohttp import web
from codespec_grammars import Context, Cursor
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from codespec import __version__
from codespec.api.body import CompletionBody, CursorBody, FileBody, LookupBody, describe
from codespec.api.limits import MAX_FILE_TEXT
from codespec.api.types import CompletionRequest, Event, Owner, Snippet, event_to_json
from codespec.engine.job import RequestHandle
from codespec.errors import CodespecError, RequestError
from codespec.exclusions.secrets import is_secret, without_secrets
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects.replies import stream
from codespec.server.dialects.requests import read_max_tokens
from codespec.server.metrics import DaemonCollector
from codespec.server.security import SCOPES, own_key
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse

COMPLETE = "/v1/codespec/complete"
SHARED = frozenset(item.name for item in fields_of(CompletionRequest))  # fields that need no conversion


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
    """Replace the files that a document's drafts may copy from. They change no token, only the speed."""
    with await read_fields(request) as fields:
        document, files = read_files(fields)
    daemon = request.app[DAEMON]
    daemon.loaded()  # raises ServeError if no requests are accepted
    texts = [file.text.encode() for file in files]
    owner = Owner(await request.app[SCOPES].of(request), document)

    def keep(loaded: Loaded) -> None:
        if loaded.engine is not None:  # an upstream server gets no drafts
            loaded.engine.look_up_in(owner, texts)

    await daemon.call(keep)
    return reply({"files": len(texts), "bytes": sum(map(len, texts))})


def read_files(fields: Fields) -> tuple[str, tuple[Snippet, ...]]:
    """Read a document's name and its files. Raise RequestError for the first unknown or invalid field."""
    body = fields.read(LookupBody)
    files = read_snippets("files", body.get("files", ()))
    if not body["document"]:
        raise RequestError("document must not be empty: name the document that the files are for.", "document")
    if sum(len(file.text) for file in files) > MAX_FILE_TEXT:
        raise RequestError(f"files must have at most {MAX_FILE_TEXT} characters together: send fewer.", "files")
    return body["document"], files


def read_request(fields: Fields, context: int) -> RequestHandle:
    """Read a request. A raw one gets `max_tokens` tokens or an error, others at most half the context."""
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
        "snippets": read_snippets("snippets", body.get("snippets", ())),
        "cursor": _cursor(body["cursor"]) if "cursor" in body else None,
    }
    shared: dict[str, Any] = {name: value for name, value in body.items() if name in SHARED}
    request = CompletionRequest(**{**shared, **settled})
    return RequestHandle(request, notes=notes)


def read_snippets(name: str, files: Iterable[FileBody]) -> tuple[Snippet, ...]:
    """Return the files of a field without secret lines. Raise RequestError for a file whose name suggests secrets."""
    snippets = tuple(Snippet(file.get("path", ""), without_secrets(file["text"])) for file in files)
    for place, snippet in enumerate(snippets):
        if is_secret(snippet.path):
            label = f"{name}[{place}].path"
            raise RequestError(f"{label} names a file that may hold secrets: do not send it as context.", label)
    return snippets


def _cursor(sent: CursorBody) -> Cursor:
    context = Context(sent.get("context", Context.UNKNOWN))
    return Cursor(context, "".join(sent.get("open_brackets", ())), sent.get("indent", 0))


def encode_error(error: CodespecError) -> bytes:
    field = error.field if isinstance(error, RequestError) else ""
    return sse({"field": field, "message": str(error)}, "error")


async def openapi(request: web.Request) -> web.Response:
    return reply(describe(__version__))


async def scrape(request: web.Request) -> web.StreamResponse:
    text = generate_latest(DaemonCollector(request.app[DAEMON]))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """Serve the metrics as JSON, with the daemon's version, state and model. A key sees only its own usage."""
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
    web.post(COMPLETE, complete),
    web.post("/v1/codespec/files", look_up_in),
    web.get("/openapi.json", openapi),
    web.get("/metrics", scrape),
    web.get("/v1/codespec/stats", stats),
]
