"""OpenAI's chat completions, for models with a chat template. Knows fields and replies; knows no engine."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from codespec.errors import RequestError
from codespec.server.chat import Said, find_chat_template, hide_controls, to_ids
from codespec.server.daemon import DAEMON
from codespec.server.dialects.frames import DONE, Chunks, Form, new_frame, read_sampling, usage, whole
from codespec.server.dialects.openai import reads_usage
from codespec.server.dialects.spelled import Spelling, chat
from codespec.server.dialects.streams import collect, read_tokens, speaking, stream
from codespec.server.loading import Loaded
from codespec.server.templates import TEMPLATES
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, event_stream, read_fields, reply
from codespec.types import CompletionRequest

NAMES = {"prefix": "messages", "prompt_ids": "messages"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_LOGPROBS = 20
MOST_MESSAGES = 1024


@speaking(NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """The model's answer to a conversation, whole or streamed."""
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    tokenizer = loaded.engine.target.tokenizer
    notes: list[str] = []
    with await read_fields(request) as fields:
        conversation = read_conversation(fields, loaded)
        settings, streams = read_settings(fields, loaded, notes), fields.flag("stream")
        with_usage = streams and reads_usage(fields)
    async with daemon.encoding:
        question, stand_ins = await asyncio.to_thread(hide_controls, tokenizer, conversation)
    laid_out = await request.app[TEMPLATES].lay_out(question)
    del conversation, question  # the messages, which the prompt holds
    async with daemon.encoding:
        ids, text = await asyncio.to_thread(to_ids, tokenizer, laid_out, stand_ins)
    asks = [Ask(CompletionRequest(prefix=text, prompt_ids=ids, **settings), notes=tuple(notes))]
    spelling = None if settings["logprobs"] is None else Spelling(tokenizer)
    form = Form(_message, _delta, chat, _opening)
    if streams:
        frame = new_frame("chatcmpl", "chat.completion.chunk", loaded)
        chunks = Chunks(frame, form, asks, spelling, with_usage)
        return await stream(request, asks, event_stream(request), chunks.say, last=DONE)
    done = await collect(request, asks)
    body = whole(new_frame("chatcmpl", "chat.completion", loaded), form, spelling, asks, done)
    return reply({**body, "usage": usage(done, settings["n"])})


def read_conversation(fields: Fields, loaded: Loaded) -> list[Said]:
    """The messages, as text. Raises RequestError where there are none, or the model can't take any."""
    if not find_chat_template(loaded.engine.target.tokenizer):
        sentence = f"messages can't be answered ({loaded.name} has no chat template): use /v1/completions."
        raise RequestError(sentence, "messages")
    messages = [_said(part) for part in fields.parts("messages", MOST_MESSAGES)]
    if not messages:
        raise RequestError("messages is empty: send at least one.", "messages")
    return messages


def _said(message: Fields) -> Said:
    role = message.text("role")
    if role not in ROLES:
        raise RequestError(f"{message.label('role')} must be one of {', '.join(ROLES)}.", message.label("role"))
    for name in ("tool_calls", "function_call"):
        message.refuse_unless(name, ([], {}), "no tools are called")
    return Said(ROLES[role], message.text_or_parts("content"))


def read_settings(fields: Fields, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    """How to answer. Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    for name in ("tools", "functions"):
        fields.refuse_unless(name, ([],), "no tools are called")
    fields.refuse_unless("response_format", ({"type": "text"},), "answers are plain text")
    length = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    top = fields.whole("top_logprobs", 0, 0, MOST_LOGPROBS)
    asked = fields.flag("logprobs")
    if top and not asked:
        raise RequestError("top_logprobs needs logprobs to be true: send both, or none.", "top_logprobs")
    return {
        **read_sampling(fields),
        "max_tokens": read_tokens(fields, length, loaded.context, notes, default=256),
        "logprobs": top if asked else None,
    }


def _message(number: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": number, "message": message, "logprobs": logprobs, "finish_reason": finish}


def _delta(number: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    delta = {"content": text} if text else {}
    return {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _opening(number: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}


ROUTES = [web.post("/v1/chat/completions", complete)]
