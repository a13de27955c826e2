"""Mistral's fill-in-the-middle endpoint as Continue and minuet use it: legacy fields in, chat-shaped choices out.

Knows fields and replies (WIRE.md §1.3); knows no engine.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from codespec.server.daemon import DAEMON
from codespec.server.dialects.frames import DONE, Chunks, Form, new_frame, usage, whole
from codespec.server.dialects.streams import collect, demand_fim, read_seed, read_tokens, speaking, stream
from codespec.server.loading import Loaded
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, event_stream, read_fields, reply
from codespec.types import CompletionRequest

NAMES = {"prefix": "prompt"}


@speaking(NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """A completion between prompt and suffix, whole or streamed."""
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        asks, streams = [read_ask(fields, loaded)], fields.flag("stream")
    form = Form(_message, _delta)
    if streams:
        chunks = Chunks(new_frame("fim", "chat.completion.chunk", loaded), form, asks)
        return await stream(request, asks, event_stream(request), chunks.say, last=DONE)
    done = await collect(request, asks)
    body = whole(new_frame("fim", "chat.completion", loaded), form, None, asks, done)
    return reply({**body, "usage": usage(done, 1)})


def read_ask(fields: Fields, loaded: Loaded) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    if fields.text("suffix", ""):
        demand_fim(loaded, "suffix")
    notes: list[str] = []
    request = CompletionRequest(
        prefix=fields.text("prompt"),
        suffix=fields.text("suffix", ""),
        max_tokens=read_tokens(fields, "max_tokens", loaded.context, notes),
        temperature=fields.number("temperature", 0.0, 0.0, 2.0),
        top_p=max(1e-6, fields.number("top_p", 1.0, 0.0, 1.0)),
        seed=read_seed(fields, "random_seed"),
        stop=fields.texts("stop"),
        shape="auto",
        heal=True,
    )
    return Ask(request, notes=tuple(notes))


def _message(number: int, text: str, finish: str | None, logprobs: None) -> dict[str, Any]:
    return {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": finish}


def _delta(number: int, text: str, finish: str | None, logprobs: None) -> dict[str, Any]:
    return {"index": number, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}


ROUTES = [web.post("/v1/fim/completions", complete)]
