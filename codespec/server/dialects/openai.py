"""OpenAI's API for minuet, llm-ls, Continue and Zed, and Mistral's fill-in-the-middle endpoint for Continue and minuet.

A legacy completion is filled in the middle if it has a suffix, or if its prompt has the FIM markers of a known model
family; the target's own markers replace those. Other chat completions than fill-in-the-middle require a chat template.
Mistral's endpoint reads the fields of a legacy completion and returns choices in chat format.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from codespec.api.limits import MAX_CHOICES, MAX_LOGPROBS, MAX_PATH, MAX_PREDICTION
from codespec.api.types import PREDICTION, Completion, Counts, Event, RoundEvent, TextEvent
from codespec.engine.job import RequestHandle
from codespec.errors import RequestError
from codespec.server import chat_template
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects import shared
from codespec.server.dialects.shared import Unread
from codespec.server.wire import Fields, Refused, clip, event_stream, read_fields, reply, sse
from codespec.text.edit_formats import predict_region
from codespec.text.fim_templates import split_ready_made

NAMES = {"prefix": "prompt", "prompt_ids": "prompt"}
CHAT_NAMES = {"prefix": "messages", "prompt_ids": "messages"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_MESSAGES = 1024
MAX_LEGACY_LOGPROBS = 5
FINISH = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}
MISTRAL = {"min_tokens": Unread("the model determines the length of its text", (0,))}
OPENAI = {
    "frequency_penalty": Unread("the engine has only repetition_penalty", (0,)),
    "presence_penalty": Unread("the engine has only repetition_penalty", (0,)),
    "logit_bias": Unread("the engine has no token biases", ({},)),
}
CHAT = {
    **OPENAI,
    "tools": Unread("no tools are called", ([],)),
    "functions": Unread("no tools are called", ([],)),
    "response_format": Unread("answers are plain text", ({"type": "text"},)),
}


@shared.with_field_names(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    loaded = request.app[DAEMON].ready()
    with fields:
        handles, settings = _read_legacy(fields, loaded)
    return await respond(request, handles, loaded, LEGACY, **settings)


def _read_legacy(fields: Fields, loaded: Loaded) -> tuple[list[RequestHandle], dict[str, Any]]:
    """Return a request handle for each prompt, and keyword arguments for `respond`."""
    fields.text("model", "", MAX_PATH)
    notes = shared.refuse_unread(fields, OPENAI)
    sampling, echo, streams = _read_sampling(fields), fields.flag("echo"), _read_stream(fields)
    choices = sampling["n"]
    written = fields.whole("best_of", choices, choices, MAX_CHOICES)
    if written > choices and streams["streams"]:
        raise RequestError("best_of can't be used in a stream: remove best_of or stream.", "best_of")
    logprobs = fields.whole("logprobs", 0, 0, MAX_LEGACY_LOGPROBS) if "logprobs" in fields else None
    if echo and logprobs is not None:
        raise RequestError("logprobs can't be computed for an echoed prompt: remove logprobs or echo.", "logprobs")
    sampling["n"] = written
    sampling["logprobs"] = 0 if logprobs is None and written > choices else logprobs
    sampling["max_tokens"] = shared.read_max_tokens(fields, "max_tokens", loaded.context, notes)
    prompts = fields.prompts("prompt")
    read = [shared.read_prompt(prompt, fields, loaded, notes) for prompt in prompts]
    handles = [RequestHandle(shared.make_request(texts, sampling), notes=notes) for texts in read]
    return handles, {
        **streams,
        "with_logprobs": logprobs is not None,
        "echoes": [shared.prompt_text(prompt, loaded) for prompt in prompts for _ in range(choices)] if echo else (),
        "choose": partial(_best, written, choices),
    }


def _best(written: int, wanted: int, done: Sequence[Completion]) -> Sequence[Completion]:
    """Select `wanted` of each prompt's `written` choices by the highest mean log-probability per token."""
    if written == wanted:
        return done
    groups = (done[start : start + written] for start in range(0, len(done), written))
    return [one for group in groups for one in sorted(group, key=_likelihood, reverse=True)[:wanted]]


def _likelihood(completion: Completion) -> float:
    return sum(token.logprob for token in completion.logprobs) / max(1, len(completion.logprobs))


def _read_sampling(fields: Fields) -> dict[str, Any]:
    prediction, text = fields.part("prediction"), ""
    if prediction is not None:
        if prediction.text("type") != "content":
            raise RequestError('prediction.type must be "content".', "prediction.type")
        text = prediction.text_or_parts("content", "", MAX_PREDICTION)
    return {**shared.read_sampling(fields), "n": shared.read_choices(fields), "prediction": text}


def _read_stream(fields: Fields) -> dict[str, Any]:
    streams = fields.flag("stream")
    options = fields.part("stream_options") if streams else None
    return {"streams": streams, "with_usage": options is not None and options.flag("include_usage")}


@shared.with_field_names(CHAT_NAMES)
async def chat_complete(request: web.Request) -> web.StreamResponse:
    daemon = request.app[DAEMON]
    loaded = daemon.ready()
    tokenizer = loaded.tokenizer
    notes: list[str] = []
    with await read_fields(request) as fields:
        conversation = _read_conversation(fields)
        settings, streams = _read_chat(fields, loaded, notes), _read_stream(fields)
        texts = _read_hole(conversation[-1], loaded, notes)
        if not texts and not chat_template.find_chat_template(tokenizer):
            sentence = f"messages can't be answered ({loaded.name} has no chat template): use /v1/completions."
            raise RequestError(sentence, "messages")
    if not texts:
        async with daemon.encoding:
            hidden, placeholders = await asyncio.to_thread(chat_template.hide_control_tokens, tokenizer, conversation)
        rendered = await request.app[chat_template.CHAT_TEMPLATES].render(hidden)
        del hidden
        async with daemon.encoding:
            ids, text = await asyncio.to_thread(chat_template.encode_prompt, tokenizer, rendered, placeholders)
        texts = {"prefix": text, "prompt_ids": ids, "prediction": predict_region(conversation[-1].content)}
    del conversation  # free the messages, which the prompt contains
    handles = [RequestHandle(shared.make_request(texts, settings), notes=notes)]
    return await respond(request, handles, loaded, CHATS, **streams, with_logprobs=settings["logprobs"] is not None)


def _read_hole(last: chat_template.ChatMessage, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    """Return the fields of `shared.read_prompt` if the last message is a fill-in-the-middle prompt, else {}."""
    # A chat template would turn a fill-in-the-middle prompt into a request to explain the code.
    whole = last.role == "user" and not shared.missing_fim(loaded) and split_ready_made(last.content)
    return shared.read_prompt(last.content, Fields({}), loaded, notes, "messages") if whole else {}


def _read_conversation(fields: Fields) -> list[chat_template.ChatMessage]:
    messages = []
    for message in fields.parts("messages", MAX_MESSAGES):
        role = message.choice("role", tuple(ROLES))
        for name in ("tool_calls", "function_call"):
            message.refuse_unless(name, ([], {}), "no tools are called")
        messages.append(chat_template.ChatMessage(ROLES[role], message.text_or_parts("content")))
    if not messages:
        raise RequestError("messages is empty: send at least one message.", "messages")
    return messages


def _read_chat(fields: Fields, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    fields.text("model", "", MAX_PATH)
    notes += shared.refuse_unread(fields, CHAT)
    length = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    top, wanted = fields.whole("top_logprobs", 0, 0, MAX_LOGPROBS), fields.flag("logprobs")
    if top and not wanted:
        raise RequestError(
            "top_logprobs requires logprobs to be true: set logprobs to true, or remove top_logprobs.", "top_logprobs"
        )
    tokens = shared.read_max_tokens(fields, length, loaded.context, notes, default=256)
    return {**_read_sampling(fields), "max_tokens": tokens, "logprobs": top if wanted else None}


@shared.with_field_names(NAMES)
async def fill_in(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].ready()
    with await read_fields(request) as fields:
        fields.text("model", "", MAX_PATH)
        notes = shared.refuse_unread(fields, MISTRAL)
        texts = shared.read_prompt(fields.text("prompt"), fields, loaded, notes)
        settings = {
            "max_tokens": shared.read_max_tokens(fields, "max_tokens", loaded.context, notes),
            **shared.read_sampling(fields, ("top_p", "seed", "stop"), {"seed": "random_seed"}),
            **({} if "prompt_ids" in texts else {"shape": "auto", "heal": True}),
        }
        handle, streams = RequestHandle(shared.make_request(texts, settings), notes=notes), fields.flag("stream")
    return await respond(request, [handle], loaded, FIM, streams=streams)


async def models(request: web.Request) -> web.StreamResponse:
    return reply({"object": "list", "data": [_model(request.app[DAEMON].loaded())]})


async def model(request: web.Request) -> web.StreamResponse:
    """Describe the served model. Raise Refused (HTTP 404) if the path names another model."""
    loaded, name = request.app[DAEMON].loaded(), request.match_info["name"]
    if name != loaded.name:
        raise Refused(f"model {clip(name)} is not served here: use {loaded.name}.", "model", 404)
    return reply(_model(loaded))


def _model(loaded: Loaded) -> dict[str, Any]:
    chats, fills = bool(chat_template.find_chat_template(loaded.tokenizer)), not shared.missing_fim(loaded)
    return {
        "id": loaded.name,
        "object": "model",
        "created": 0,
        "owned_by": "codespec",
        "type": "base",  # this field and the next two are Mistral's
        "capabilities": {"completion_chat": chats, "completion_fim": fills},
        "max_context_length": loaded.context,
        "max_model_len": loaded.context,  # vLLM's
    }


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    prefix: str  # of the reply's id
    kinds: tuple[str, str]  # the values of `object` in a whole reply and in a chunk
    full: Callable[[str], dict[str, Any]]  # the fields of a whole choice with this text
    chunk: Callable[[str], dict[str, Any]]  # the fields of a streamed choice with this text
    opening: dict[str, Any] | None = None  # the fields of each choice's first chunk
    logprobs: Callable[[shared.TokenNames, Sequence[shared.Placed]], Any] | None = None  # None: no such field

    def choice(self, number: int, content: dict[str, Any], finish: str | None, logprobs: Any) -> dict[str, Any]:
        more = {} if self.logprobs is None else {"logprobs": logprobs}
        return {"index": number, **content, **more, "finish_reason": finish}


async def respond(
    request: web.Request,
    handles: Sequence[RequestHandle],
    loaded: Loaded,
    form: ReplyFormat,
    *,
    streams: bool,
    with_usage: bool = False,
    with_logprobs: bool = False,
    echoes: Sequence[str] = (),
    choose: Callable[[Sequence[Completion]], Sequence[Completion]] = lambda done: done,
) -> web.StreamResponse:
    """Reply with a stream, or with one body of the choices that `choose` selects. Prefix each choice with its echo."""
    names = shared.TokenNames(loaded.tokenizer) if with_logprobs else None
    frame = {
        "id": f"{form.prefix}-{secrets.token_hex(12)}",
        "object": form.kinds[streams],
        "created": int(time.time()),
        "model": loaded.name,
        "system_fingerprint": "codespec",
    }
    if streams:
        encode = _encoder(frame, form, handles, names, with_usage, echoes)
        return await shared.stream(request, handles, event_stream(request), encode, last=b"data: [DONE]\n\n")
    done = await shared.collect(request, handles)
    kept = choose(done)
    choices = []
    for number, completion in enumerate(kept):
        placed = names and form.logprobs and form.logprobs(names, shared.place_tokens(names, completion))
        text = echoes[number] + completion.text if echoes else completion.text
        choices.append(form.choice(number, form.full(text), FINISH[completion.finish_reason], placed))
    notes = shared.notes_field(handles, kept)
    return reply({**frame, "choices": choices, **notes, "usage": _usage(done, handles[0].request.n)})


def _usage(done: Sequence[Completion], choices: int) -> dict[str, Any]:
    """Return the token counts of all prompts and choices. Count a prompt once, regardless of its `choices`."""
    prompts = [completion.stats for completion in done[::choices]]
    prompt, written = sum(s.prompt_tokens for s in prompts), sum(completion.stats.committed for completion in done)
    predictions = [completion.stats.by_source.get(PREDICTION, Counts()) for completion in done]
    accepted = sum(counts.accepted for counts in predictions)
    rejected = sum(counts.drafted for counts in predictions) - accepted
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in prompts)},
        "completion_tokens_details": {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected},
    }


def _encoder(
    frame: dict[str, Any],
    form: ReplyFormat,
    handles: Sequence[RequestHandle],
    names: shared.TokenNames | None,
    with_usage: bool,
    echoes: Sequence[str],
) -> Callable[[Event], list[bytes]]:
    """Return a function that encodes events as chunks of a stream. `names` is None if log-probabilities are off."""
    count = sum(handle.request.n for handle in handles)
    sent = [0] * count  # characters by choice
    placers = [shared.TokenPlacer(names) for _ in sent] if names else []
    openings = [form.chunk(echo) if echo else form.opening for echo in echoes or [""] * count]
    done: dict[int, Completion] = {}

    def chunk(number: int, content: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        placed = placers[number].take(sent[number]) if placers else []
        logprobs = form.logprobs(names, placed) if form.logprobs and names and placed else None
        usage = {"usage": None} if with_usage else {}  # as OpenAI sends it before the last chunk
        return sse({**frame, "choices": [form.choice(number, content, finish, logprobs)], **more, **usage})

    def encode(event: Event) -> list[bytes]:
        pieces = [chunk(number, opening) for number, opening in enumerate(openings) if opening]
        openings.clear()
        number = event.choice
        if isinstance(event, TextEvent):
            sent[number] += len(event.text)
            return [*pieces, chunk(number, form.chunk(event.text))]
        if placers:
            placers[number].add(event.logprobs if isinstance(event, RoundEvent) else event.completion.logprobs)
        if isinstance(event, RoundEvent):
            return pieces
        completion = done[number] = event.completion
        notes = shared.notes_field(handles, [completion])
        pieces.append(chunk(number, form.chunk(""), FINISH[completion.finish_reason], **notes))
        if with_usage and len(done) == count:
            usage = _usage([done[choice] for choice in range(count)], handles[0].request.n)
            pieces.append(sse({**frame, "choices": [], "usage": usage}))
        return pieces

    return encode


def _legacy_logprobs(names: shared.TokenNames, placed: Sequence[shared.Placed]) -> dict[str, Any]:
    tops = []
    for token, _ in placed:
        top: dict[str, float] = {}
        for number, value in (*token.top, (token.id, token.logprob)):
            top.setdefault(names.text(number), max(value, shared.MIN_LOGPROB))  # the likeliest id with this text
        tops.append(top)
    return {
        "tokens": [names.text(token.id) for token, _ in placed],
        "token_logprobs": [max(token.logprob, shared.MIN_LOGPROB) for token, _ in placed],
        "top_logprobs": tops,
        "text_offset": [start for _, start in placed],
    }


LEGACY = ReplyFormat(
    "cmpl", ("text_completion",) * 2, lambda text: {"text": text}, lambda text: {"text": text}, None, _legacy_logprobs
)
CHAT_KINDS = ("chat.completion", "chat.completion.chunk")
CHATS = ReplyFormat(
    "chatcmpl",
    CHAT_KINDS,
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    lambda text: {"delta": {"content": text} if text else {}},
    {"delta": {"role": "assistant", "content": ""}},
    lambda names, placed: {"content": [names.entry(token) for token, _ in placed], "refusal": None},
)
FIM = ReplyFormat(
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
