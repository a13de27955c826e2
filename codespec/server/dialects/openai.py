"""OpenAI's API, for minuet, llm-ls, Continue and Zed: legacy completions, chat completions, the list of models.

Also Mistral's fill-in-the-middle, for Continue and minuet: legacy fields in, chat-shaped choices out. A legacy request
with a suffix fills in the middle. So does a prompt with the markers of a known model family, which is split and rebuilt
for the target. Chat needs a model with a chat template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from aiohttp import web

from codespec.api.limits import MAX_CHOICES, MAX_LOGPROBS, MAX_PATH
from codespec.api.types import Completion
from codespec.engine.job import RequestHandle
from codespec.errors import RequestError
from codespec.server.chat_template import (
    CHAT_TEMPLATES,
    ChatMessage,
    encode_prompt,
    find_chat_template,
    hide_control_tokens,
)
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects.replies import ChoiceShape, chat, legacy, respond
from codespec.server.dialects.requests import (
    CHAT,
    MISTRAL,
    OPENAI,
    make_request,
    missing_fim,
    prompt_text,
    read_include_usage,
    read_max_tokens,
    read_openai_sampling,
    read_prediction,
    read_prompt,
    read_sampling,
    refuse_unread,
    with_field_names,
)
from codespec.server.wire import Fields, Refused, clip, read_fields, reply
from codespec.text.edit_formats import predict_region
from codespec.text.fim_templates import split_ready_made

NAMES = {"prefix": "prompt", "prompt_ids": "prompt"}
CHAT_NAMES = {"prefix": "messages", "prompt_ids": "messages"}
CHAT_KINDS = ("chat.completion", "chat.completion.chunk")
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_MESSAGES = 1024
MAX_LEGACY_LOGPROBS = 5


@with_field_names(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    with fields:
        handles, settings = _read_legacy(fields, loaded)
    return await respond(request, handles, loaded, LEGACY, **settings)


def _read_legacy(fields: Fields, loaded: Loaded) -> tuple[list[RequestHandle], dict[str, Any]]:
    """Return a handle for each prompt, and the arguments of `respond`."""
    fields.text("model", "", MAX_PATH)
    notes = refuse_unread(fields, OPENAI)
    sampling, echo, streams = read_openai_sampling(fields), fields.flag("echo"), fields.flag("stream")
    choices = sampling["n"]
    written = fields.whole("best_of", choices, choices, MAX_CHOICES)
    if written > choices and streams:
        raise RequestError("best_of can't be used in a stream: remove best_of or stream.", "best_of")
    logprobs = fields.whole("logprobs", 0, 0, MAX_LEGACY_LOGPROBS) if "logprobs" in fields else None
    if echo and logprobs is not None:
        raise RequestError("logprobs can't be computed for an echoed prompt: remove logprobs or echo.", "logprobs")
    sampling["n"] = written
    sampling["logprobs"] = 0 if logprobs is None and written > choices else logprobs
    sampling["prediction"] = read_prediction(fields)
    sampling["max_tokens"] = read_max_tokens(fields, "max_tokens", loaded.context, notes)
    prompts = fields.prompts("prompt")
    read = [read_prompt(prompt, fields, loaded, notes) for prompt in prompts]
    handles = [RequestHandle(make_request(texts, sampling), notes=notes) for texts in read]
    return handles, {
        "streams": streams,
        "with_usage": streams and read_include_usage(fields),
        "with_logprobs": logprobs is not None,
        "echoes": [prompt_text(prompt, loaded) for prompt in prompts for _ in range(choices)] if echo else (),
        "choose": partial(_best, written, choices),
    }


def _best(written: int, wanted: int, done: Sequence[Completion]) -> Sequence[Completion]:
    """Return the `wanted` choices of each prompt's `written` ones with the highest mean log-probability per token."""
    if written == wanted:
        return done
    groups = (done[start : start + written] for start in range(0, len(done), written))
    return [one for group in groups for one in sorted(group, key=_likelihood, reverse=True)[:wanted]]


def _likelihood(completion: Completion) -> float:
    return sum(token.logprob for token in completion.logprobs) / max(1, len(completion.logprobs))


@with_field_names(CHAT_NAMES)
async def chat_complete(request: web.Request) -> web.StreamResponse:
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    tokenizer = loaded.tokenizer
    notes: list[str] = []
    with await read_fields(request) as fields:
        conversation = read_conversation(fields)
        settings, streams = read_settings(fields, loaded, notes), fields.flag("stream")
        with_usage = streams and read_include_usage(fields)
        texts = read_hole(conversation, loaded, notes)
        if not texts and not find_chat_template(tokenizer):
            sentence = f"messages can't be answered ({loaded.name} has no chat template): use /v1/completions."
            raise RequestError(sentence, "messages")
    if not texts:
        async with daemon.encoding:
            hidden, placeholders = await asyncio.to_thread(hide_control_tokens, tokenizer, conversation)
        rendered = await request.app[CHAT_TEMPLATES].render(hidden)
        del hidden
        async with daemon.encoding:
            ids, text = await asyncio.to_thread(encode_prompt, tokenizer, rendered, placeholders)
        texts = {"prefix": text, "prompt_ids": ids, "prediction": predict_region(conversation[-1].content)}
    del conversation  # free the messages, which the prompt contains
    handles = [RequestHandle(make_request(texts, settings), notes=notes)]
    wanted = settings["logprobs"] is not None
    return await respond(request, handles, loaded, CHATS, streams=streams, with_usage=with_usage, with_logprobs=wanted)


def read_hole(conversation: Sequence[ChatMessage], loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    """Return prefix, suffix and other files if the last message is a prompt with a family's markers; else {}.

    Clients that know only chat wrap such a prompt, as Qwen's own page says; a chat model would explain it instead.
    """
    last = conversation[-1]
    whole = last.role == "user" and not missing_fim(loaded) and split_ready_made(last.content)
    return read_prompt(last.content, Fields({}), loaded, notes, "messages") if whole else {}


def read_conversation(fields: Fields) -> list[ChatMessage]:
    messages = [_read_message(part) for part in fields.parts("messages", MAX_MESSAGES)]
    if not messages:
        raise RequestError("messages is empty: send at least one.", "messages")
    return messages


def _read_message(message: Fields) -> ChatMessage:
    role = message.choice("role", tuple(ROLES))
    for name in ("tool_calls", "function_call"):
        message.refuse_unless(name, ([], {}), "no tools are called")
    return ChatMessage(ROLES[role], message.text_or_parts("content"))


def read_settings(fields: Fields, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    fields.text("model", "", MAX_PATH)
    notes += refuse_unread(fields, CHAT)
    length = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    top = fields.whole("top_logprobs", 0, 0, MAX_LOGPROBS)
    wanted = fields.flag("logprobs")
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs to be true: send both, or none.", "top_logprobs")
    return {
        **read_openai_sampling(fields),
        "max_tokens": read_max_tokens(fields, length, loaded.context, notes, default=256),
        "logprobs": top if wanted else None,
        "prediction": read_prediction(fields),
    }


@with_field_names(NAMES)
async def fill_in(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        handles, streams = [_read_fim(fields, loaded)], fields.flag("stream")
    return await respond(request, handles, loaded, FIM, streams=streams)


def _read_fim(fields: Fields, loaded: Loaded) -> RequestHandle:
    fields.text("model", "", MAX_PATH)
    notes = refuse_unread(fields, MISTRAL)
    texts = read_prompt(fields.text("prompt"), fields, loaded, notes)
    settings = {
        "max_tokens": read_max_tokens(fields, "max_tokens", loaded.context, notes),
        **read_sampling(fields, ("top_p", "seed", "stop"), {"seed": "random_seed"}),
    }
    ends = {} if "prompt_ids" in texts else {"shape": "auto", "heal": True}
    return RequestHandle(make_request(texts, settings | ends), notes=notes)


async def models(request: web.Request) -> web.StreamResponse:
    return reply({"object": "list", "data": [_model(request.app[DAEMON].loaded())]})


async def model(request: web.Request) -> web.StreamResponse:
    """Return the model by its name. Raise Refused (404) for any other name."""
    loaded, name = request.app[DAEMON].loaded(), request.match_info["name"]
    if name != loaded.name:
        raise Refused(f"model {clip(name)} is not served here: use {loaded.name}.", "model", 404)
    return reply(_model(loaded))


def _model(loaded: Loaded) -> dict[str, Any]:
    """Return the model in OpenAI's format, with the additional fields of Mistral and vLLM."""
    chats, fills = bool(find_chat_template(loaded.tokenizer)), not missing_fim(loaded)
    return {
        "id": loaded.name,
        "object": "model",
        "created": 0,
        "owned_by": "codespec",
        "type": "base",
        "capabilities": {"completion_chat": chats, "completion_fim": fills},
        "max_context_length": loaded.context,
        "max_model_len": loaded.context,
    }


LEGACY = ChoiceShape(
    "cmpl", ("text_completion",) * 2, lambda text: {"text": text}, lambda text: {"text": text}, logprobs=legacy
)
CHATS = ChoiceShape(
    "chatcmpl",
    CHAT_KINDS,
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    lambda text: {"delta": {"content": text} if text else {}},
    {"delta": {"role": "assistant", "content": ""}},
    chat,
)
FIM = ChoiceShape(
    "fim",
    CHAT_KINDS,
    lambda text: {"message": {"role": "assistant", "content": text}},
    lambda text: {"delta": {"role": "assistant", "content": text}},
)
ROUTES = [
    web.post("/v1/chat/completions", chat_complete),
    web.post("/v1/fim/completions", fill_in),
    web.get("/v1/models", models),
    web.get("/v1/models/{name:.+}", model),
]
