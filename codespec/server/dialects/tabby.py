"""Tabby's server API for its editor agent: completions, health, settings, and events, which are discarded."""

from __future__ import annotations

import os
import platform
import uuid

from aiohttp import web

from codespec import __version__
from codespec.api.limits import MAX_NAME, MAX_PATH
from codespec.api.types import CompletionRequest, Snippet
from codespec.engine.job import RequestHandle
from codespec.errors import RequestError
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects import shared
from codespec.server.wire import Fields, read_fields, reply

RAW = "debug_options.raw_prompt"
NAMES = {"prefix": "segments.prefix", "suffix": "segments.suffix", "prompt_ids": RAW}
SNIPPETS = ("declarations", "relevant_snippets_from_changed_files", "relevant_snippets_from_recently_opened_files")
MAX_TOKENS = 64
PROTOCOL = "v0.9.0"  # agents get the telemetry setting only from this version of Tabby on


@shared.with_field_names(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    with fields:
        handle = read_request(fields, request.app[DAEMON].ready())
    done = await shared.collect(request, [handle])
    choices, notes = [{"index": one.choice, "text": one.text} for one in done], shared.notes_field([handle], done)
    return reply({"id": f"cmpl-{uuid.uuid4()}", "choices": choices, "mode": "standard", **notes})


def read_request(fields: Fields, loaded: Loaded) -> RequestHandle:
    """Read a request. If a raw prompt is sent, which usually contains a model's markers, ignore the segments."""
    fields.refuse_unless("mode", ("standard",), "only standard completions are supported")
    debug, segments = fields.part("debug_options"), fields.part("segments")
    raw = debug.text("raw_prompt", "") if debug else ""
    if segments is None and not raw:
        raise RequestError("segments is missing: send an object with a prefix.", "segments")
    source = segments if segments is not None and not raw else Fields({})
    notes: list[str] = []
    if raw:
        texts = shared.read_prompt(raw, source, loaded, notes, RAW)
    else:
        parts = [part for name in SNIPPETS for part in source.parts(name)]
        files = [Snippet(part.text("filepath", "", MAX_PATH), part.text("body")) for part in parts]
        texts = {"prefix": source.text("prefix"), "suffix": source.text("suffix", "")}
        texts["snippets"] = shared.without_secrets(files, notes)
    request = CompletionRequest(
        **texts,
        path=source.text("filepath", "", MAX_PATH),
        language=fields.text("language", "", MAX_NAME),
        max_tokens=MAX_TOKENS,
        **shared.read_sampling(fields, ("seed",)),
        shape="raw" if raw else "auto",
        heal=not raw,
    )
    return RequestHandle(request, notes=notes)


async def health(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    return reply(
        {
            "model": loaded.name,
            "models": {"completion": {"local": {"model_id": loaded.name, "device": "cpu"}}},
            "device": loaded.device,
            "arch": platform.machine(),
            "cpu_info": platform.processor() or platform.machine(),
            "cpu_count": os.cpu_count() or 1,
            "cuda_devices": [],
            "version": {
                "build_date": "",
                "build_timestamp": "",
                "git_sha": "",
                "git_describe": f"{PROTOCOL} (codespec {__version__})",
            },
        }
    )


async def events(request: web.Request) -> web.StreamResponse:
    with await read_fields(request):
        return web.Response()


async def server_setting(request: web.Request) -> web.StreamResponse:
    return reply({"disable_client_side_telemetry": True})


ROUTES = [
    web.get("/v1/health", health),
    web.post("/v1/health", health),
    web.post("/v1/events", events),
    web.get("/v1beta/server_setting", server_setting),
]
