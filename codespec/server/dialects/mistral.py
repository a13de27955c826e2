"""Mistral's fill-in-the-middle endpoint for Continue and minuet: legacy fields in, chat-shaped choices out."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from codespec.contract.limits import MOST_PATH
from codespec.contract.types import CompletionRequest
from codespec.server.daemon import DAEMON
from codespec.server.dialects.replies import DONE, ChoiceShape, Chunks, collect, new_frame, stream, usage, whole_reply
from codespec.server.dialects.requests import read_max_tokens, read_prompt, read_seed, with_field_names
from codespec.server.handles import RequestHandle
from codespec.server.loading import Loaded
from codespec.server.wire import Fields, event_stream, read_fields, reply

NAMES = {"prefix": "prompt"}


@with_field_names(NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """Fill in between prompt and suffix, in one reply or as a stream."""
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        handles, streams = [read_request(fields, loaded)], fields.flag("stream")
    shape = ChoiceShape(_message, _delta)
    if streams:
        chunks = Chunks(new_frame("fim", "chat.completion.chunk", loaded), shape, handles)
        return await stream(request, handles, event_stream(request), chunks.encode, last=DONE)
    done = await collect(request, handles)
    body = whole_reply(new_frame("fim", "chat.completion", loaded), shape, None, handles, done)
    return reply({**body, "usage": usage(done, 1)})


def read_request(fields: Fields, loaded: Loaded) -> RequestHandle:
    """Read a request. Raise RequestError for the first invalid field."""
    fields.text("model", "", MOST_PATH)
    notes: list[str] = []
    request = CompletionRequest(
        **read_prompt(fields.text("prompt"), fields, loaded, notes),
        max_tokens=read_max_tokens(fields, "max_tokens", loaded.context, notes),
        temperature=fields.number("temperature", 0.0, 0.0, 2.0),
        top_p=max(1e-6, fields.number("top_p", 1.0, 0.0, 1.0)),
        seed=read_seed(fields, "random_seed"),
        stop=fields.texts("stop"),
        shape="auto",
        heal=True,
    )
    return RequestHandle(request, notes=notes)


def _message(number: int, text: str, finish: str | None, logprobs: None) -> dict[str, Any]:
    return {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": finish}


def _delta(number: int, text: str, finish: str | None, logprobs: None) -> dict[str, Any]:
    return {"index": number, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}


ROUTES = [web.post("/v1/fim/completions", complete)]
