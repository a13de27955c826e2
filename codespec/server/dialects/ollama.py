"""Ollama's /api/generate as llm-ls and Zed use it: streamed JSON lines unless `stream` is false.

Knows fields and replies (WIRE.md §1.3); knows no engine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from codespec.errors import CodespecError
from codespec.server.daemon import DAEMON
from codespec.server.dialects.openai import read_prompt
from codespec.server.dialects.streams import read_seed, read_tokens, speaking, stream
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, Lines, dump, error_reply, read_fields, reply
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, TextEvent

NAMES = {"prefix": "prompt", "max_tokens": "options.num_predict"}
NANOSECONDS = 1_000_000  # a millisecond


async def generate(request: web.Request) -> web.StreamResponse:
    """A continuation or, with a suffix, a fill-in. Ollama's clients read errors as a plain text."""
    try:
        return await _generate(request)
    except CodespecError as error:
        return error_reply(error, {"error": str(error), "field": getattr(error, "field", "")})


@speaking(NAMES)
async def _generate(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    fields = await read_fields(request)
    ask = read_ask(fields, loaded.context)
    if fields.flag("stream", True):
        lines = Lines(request, "application/x-ndjson")
        return await stream(request, ask, lines, lambda event: _pieces(event, loaded.name), _tell_error)
    (done,) = await request.app[DAEMON].complete(ask)
    return reply({**_head(loaded.name), "response": done.text, **_tail(done)})


def read_ask(fields: Fields, context: int) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    for name in ("images", "format"):
        fields.refuse_unless(name, ([], ""), "only text is completed")
    options = fields.part("options") or Fields({}, "options.")
    request = CompletionRequest(
        **read_prompt(fields),
        max_tokens=max(1, read_tokens(options, "num_predict", context, 128)),
        temperature=options.number("temperature", 0.0, 0.0, 100.0),
        top_k=max(0, options.whole("top_k", 0)),
        top_p=max(1e-6, options.number("top_p", 1.0, 0.0, 1.0)),
        min_p=options.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=options.number("repeat_penalty", 1.0, 0.01, 100.0),
        seed=read_seed(options),
        stop=options.texts("stop"),
    )
    return Ask(request)


def _pieces(event: Event, model: str) -> list[bytes]:
    if isinstance(event, TextEvent):
        return [dump({**_head(model), "response": event.text, "done": False}) + b"\n"]
    if isinstance(event, DoneEvent):
        return [dump({**_head(model), "response": "", **_tail(event.completion)}) + b"\n"]
    return []


def _tell_error(error: CodespecError) -> bytes:
    return dump({"error": str(error)}) + b"\n"


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def _tail(completion: Completion) -> dict[str, Any]:
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
    }


ROUTES = [web.post("/api/generate", generate)]
