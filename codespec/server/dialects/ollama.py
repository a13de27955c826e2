"""Ollama's server API for llm-ls, Zed, Continue and Ollama's own client: /api/generate and model details.

Replies are streamed as lines of JSON unless `stream` is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiohttp import web

from codespec import __version__
from codespec.api.limits import MAX_PATH
from codespec.api.types import Completion, DoneEvent, Event, TextEvent
from codespec.engine.job import RequestHandle
from codespec.errors import CodespecError
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects import shared
from codespec.server.dialects.shared import Unread
from codespec.server.wire import Fields, StreamReply, clip, dump, error_reply, read_fields, reply

NAMES = {"prefix": "prompt", "prompt_ids": "prompt", "max_tokens": "options.num_predict"}
UNCHANGED = "the prompt is continued unchanged"
LOGPROBS = "only the OpenAI endpoints send log-probabilities"
OLLAMA = {
    "images": Unread(shared.TEXT, ([],)),
    "format": Unread(shared.TEXT, ("",)),
    "logprobs": Unread(LOGPROBS, (False,)),
    "top_logprobs": Unread(LOGPROBS, (0,)),
    "system": Unread(UNCHANGED, ("",)),
    "template": Unread(UNCHANGED, ("",)),
    "context": Unread(UNCHANGED, ([],)),
    "think": Unread(UNCHANGED, (False, "")),
}
OLLAMA_OPTIONS = {
    **shared.MAX_LIKELY,
    "penalize_newline": Unread("repeat_penalty counts all tokens", (True,)),
    "num_ctx": Unread("the daemon sets the context size", noted=True),
}
NANOSECONDS = 1_000_000  # per millisecond
INSERT_TEMPLATE = "{{ .Prompt }}{{ if .Suffix }}{{ .Suffix }}{{ end }}"  # Continue needs .Suffix to fill in


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue a prompt, or fill in the middle if the request has a suffix. Like Ollama, send errors as strings."""
    try:
        return await _generate(request)
    except CodespecError as error:
        return error_reply(error, {"error": str(error), "field": getattr(error, "field", "")})


@shared.with_field_names(NAMES)
async def _generate(request: web.Request) -> web.StreamResponse:
    daemon = request.app[DAEMON]
    loaded = daemon.ready()
    with await read_fields(request) as fields:
        if not fields.text("prompt", "") and not fields.text("suffix", ""):
            await daemon.call(lambda loaded: None)  # load idle models, as Ollama does
            return reply({**_head(loaded.name), "response": "", "done": True, "done_reason": "load"})
        handles, streams = [read_request(fields, loaded)], fields.flag("stream", True)
    if streams:
        lines, encode = StreamReply(request, "application/x-ndjson"), partial(_encode, loaded.name, handles)
        return await shared.stream(request, handles, lines, encode, _encode_error)
    (done,) = await shared.collect(request, handles)
    return reply({**_head(loaded.name), "response": done.text, **_tail(done, handles)})


def read_request(fields: Fields, loaded: Loaded) -> RequestHandle:
    fields.text("model", "", MAX_PATH)
    options = fields.part("options") or Fields({}, "options.")
    notes = shared.refuse_unread(fields, OLLAMA) + shared.refuse_unread(options, OLLAMA_OPTIONS)
    shared.refuse_window(options)
    texts = shared.read_prompt(fields.text("prompt", ""), fields, loaded, notes)
    settings = {
        "max_tokens": shared.read_max_tokens(options, "num_predict", loaded.context, notes, 128),
        **shared.read_sampling(options, names={"repetition_penalty": "repeat_penalty"}, hottest=100.0),
    }
    return RequestHandle(shared.make_request(texts, settings), notes=notes)


def _encode(model: str, handles: Sequence[RequestHandle], event: Event) -> list[bytes]:
    if isinstance(event, TextEvent):
        return [dump({**_head(model), "response": event.text, "done": False}) + b"\n"]
    if isinstance(event, DoneEvent):
        return [dump({**_head(model), "response": "", **_tail(event.completion, handles)}) + b"\n"]
    return []


def _encode_error(error: CodespecError) -> bytes:
    return dump({"error": str(error)}) + b"\n"


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def _tail(completion: Completion, handles: Sequence[RequestHandle]) -> dict[str, Any]:
    stats = completion.stats
    return {
        "done": True,
        "done_reason": "stop" if completion.finish_reason == "stop" else "length",
        "context": [],
        "total_duration": int(stats.total_ms * NANOSECONDS),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(stats.prefill_ms * NANOSECONDS),
        "eval_count": stats.committed,
        "eval_duration": int(max(0.0, stats.total_ms - stats.prefill_ms) * NANOSECONDS),
        **shared.notes_field(handles, [completion]),
    }


async def tags(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    return reply({"models": [{**_entry(loaded), "modified_at": "1970-01-01T00:00:00Z", "size": 0, "digest": ""}]})


async def running(request: web.Request) -> web.StreamResponse:
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    models = [] if daemon.state == "idle" else [{**_entry(loaded), "context_length": loaded.context}]
    return reply({"models": models})


async def show(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        name = fields.text("model", "", MAX_PATH) or fields.text("name", "", MAX_PATH)
    fills = not shared.missing_fim(loaded)
    about = {
        "details": _details(),
        "model_info": {"general.architecture": "codespec", "codespec.context_length": loaded.context},
        "template": INSERT_TEMPLATE if fills else "{{ .Prompt }}",
        "parameters": f"num_ctx {loaded.context}",
        "capabilities": ["completion", "insert"] if fills else ["completion"],
    }
    if name.removesuffix(":latest") != loaded.name:
        about["notes"] = [f"{clip(name)} is unknown: {loaded.name} answers instead"]
    return reply(about)


async def version(request: web.Request) -> web.StreamResponse:
    return reply({"version": __version__})


def _entry(loaded: Loaded) -> dict[str, Any]:
    return {"name": loaded.name, "model": loaded.name, "details": _details()}


def _details() -> dict[str, Any]:
    return {"format": "safetensors", "family": "codespec", "families": ["codespec"], "parameter_size": ""}


ROUTES = [
    web.post("/api/generate", generate),
    web.get("/api/tags", tags),
    web.get("/api/ps", running),
    web.post("/api/show", show),
    web.get("/api/version", version),
]
