"""OpenAI's chat completions, for models with a chat template."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from codespec.contract.limits import MOST_LOGPROBS, MOST_PATH
from codespec.contract.types import CompletionRequest
from codespec.errors import RequestError
from codespec.server.chat_template import (
    CHAT_TEMPLATES,
    ChatMessage,
    encode_prompt,
    find_chat_template,
    hide_control_tokens,
)
from codespec.server.daemon import DAEMON
from codespec.server.dialects.logprobs import TokenNames, chat
from codespec.server.dialects.replies import DONE, ChoiceShape, Chunks, collect, new_frame, stream, usage, whole_reply
from codespec.server.dialects.requests import (
    read_include_usage,
    read_max_tokens,
    read_prediction,
    read_sampling,
    with_field_names,
)
from codespec.server.handles import RequestHandle
from codespec.server.loading import Loaded
from codespec.server.wire import Fields, event_stream, read_fields, reply

NAMES = {"prefix": "messages", "prompt_ids": "messages"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_MESSAGES = 1024


@with_field_names(NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, in one reply or as a stream."""
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    tokenizer = loaded.engine.target.tokenizer
    notes: list[str] = []
    with await read_fields(request) as fields:
        conversation = read_conversation(fields, loaded)
        settings, streams = read_settings(fields, loaded, notes), fields.flag("stream")
        with_usage = streams and read_include_usage(fields)
    async with daemon.encoding:
        hidden, placeholders = await asyncio.to_thread(hide_control_tokens, tokenizer, conversation)
    rendered = await request.app[CHAT_TEMPLATES].render(hidden)
    del conversation, hidden  # free the messages, which the prompt contains
    async with daemon.encoding:
        ids, text = await asyncio.to_thread(encode_prompt, tokenizer, rendered, placeholders)
    handles = [RequestHandle(CompletionRequest(prefix=text, prompt_ids=ids, **settings), notes=notes)]
    names = None if settings["logprobs"] is None else TokenNames(tokenizer)
    shape = ChoiceShape(_message, _delta, chat, _opening)
    if streams:
        frame = new_frame("chatcmpl", "chat.completion.chunk", loaded)
        chunks = Chunks(frame, shape, handles, names, with_usage)
        return await stream(request, handles, event_stream(request), chunks.encode, last=DONE)
    done = await collect(request, handles)
    body = whole_reply(new_frame("chatcmpl", "chat.completion", loaded), shape, names, handles, done)
    return reply({**body, "usage": usage(done, settings["n"])})


def read_conversation(fields: Fields, loaded: Loaded) -> list[ChatMessage]:
    """Read the messages. Raise RequestError if there are none, or if the model has no chat template."""
    if not find_chat_template(loaded.engine.target.tokenizer):
        sentence = f"messages can't be answered ({loaded.name} has no chat template): use /v1/completions."
        raise RequestError(sentence, "messages")
    messages = [_read_message(part) for part in fields.parts("messages", MOST_MESSAGES)]
    if not messages:
        raise RequestError("messages is empty: send at least one.", "messages")
    return messages


def _read_message(message: Fields) -> ChatMessage:
    role = message.text("role")
    if role not in ROLES:
        raise RequestError(f"{message.label('role')} must be one of {', '.join(ROLES)}.", message.label("role"))
    for name in ("tool_calls", "function_call"):
        message.refuse_unless(name, ([], {}), "no tools are called")
    return ChatMessage(ROLES[role], message.text_or_parts("content"))


def read_settings(fields: Fields, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    """Read the generation settings. Raise RequestError for the first invalid field."""
    fields.text("model", "", MOST_PATH)
    for name in ("tools", "functions"):
        fields.refuse_unless(name, ([],), "no tools are called")
    fields.refuse_unless("response_format", ({"type": "text"},), "answers are plain text")
    length = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    top = fields.whole("top_logprobs", 0, 0, MOST_LOGPROBS)
    wanted = fields.flag("logprobs")
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs to be true: send both, or none.", "top_logprobs")
    return {
        **read_sampling(fields),
        "max_tokens": read_max_tokens(fields, length, loaded.context, notes, default=256),
        "logprobs": top if wanted else None,
        "prediction": read_prediction(fields),
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
