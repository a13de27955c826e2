"""Mistral's fill-in-the-middle endpoint as Continue and minuet use it: legacy fields in, chat-shaped choices out.

Knows fields and replies (WIRE.md §1.3); knows no engine.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from codespec.server.daemon import DAEMON
from codespec.server.dialects.openai import DONE, FINISH, Chunks, new_frame, usage
from codespec.server.dialects.streams import read_seed, read_tokens, speaking, stream
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, event_stream, read_fields, reply
from codespec.types import CompletionRequest

NAMES = {"prefix": "prompt"}


@speaking(NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """A completion between prompt and suffix, whole or streamed."""
    loaded = request.app[DAEMON].loaded()
    fields = await read_fields(request)
    ask = read_ask(fields, loaded.context)
    if not fields.flag("stream"):
        done = await request.app[DAEMON].complete(ask)
        choices = [_message(c.choice, c.text, FINISH[c.finish_reason]) for c in done]
        return reply({**new_frame("fim", "chat.completion", loaded), "choices": choices, "usage": usage(done)})
    chunks = Chunks(new_frame("fim", "chat.completion.chunk", loaded), _delta)
    return await stream(request, ask, event_stream(request), chunks.say, last=DONE)


def read_ask(fields: Fields, context: int) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    request = CompletionRequest(
        prefix=fields.text("prompt"),
        suffix=fields.text("suffix", ""),
        max_tokens=max(1, read_tokens(fields, "max_tokens", context)),
        temperature=fields.number("temperature", 0.0, 0.0, 2.0),
        top_p=max(1e-6, fields.number("top_p", 1.0, 0.0, 1.0)),
        seed=read_seed(fields, "random_seed"),
        stop=fields.texts("stop"),
        shape="auto",
        heal=True,
    )
    return Ask(request)


def _message(number: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": finish}


def _delta(number: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": number, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}


ROUTES = [web.post("/v1/fim/completions", complete)]
