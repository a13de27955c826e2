"""llama.cpp's server API for llama.vim, llama.vscode and Continue: /infill, /completion, server and model details."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web

from codespec import __version__
from codespec.api.limits import MAX_LOGPROBS, MAX_PATH, MAX_TEXT
from codespec.api.types import Completion, DoneEvent, Event, Snippet, Stats, TextEvent
from codespec.engine.job import RequestHandle
from codespec.errors import RequestError, ServeError
from codespec.server.chat_template import find_chat_template
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.dialects.replies import TokenNames, collect, llama, notes_field, place_tokens, stream
from codespec.server.dialects.requests import (
    INFILL,
    LLAMA_CPP,
    SAMPLING,
    make_request,
    missing_fim,
    read_choices,
    read_max_tokens,
    read_prompt,
    read_sampling,
    refuse_unread,
    refuse_window,
    with_field_names,
    without_secrets,
)
from codespec.server.security import own_key
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse

INFILL_NAMES = {"prefix": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict", "n": "n_cmpl"}
COMPLETION_NAMES = {
    "prefix": "prompt",
    "prompt_ids": "prompt",
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
    "n": "n_cmpl",
}
MAX_CONTENT = 1 << 18  # characters to tokenize, which take a few tenths of a second
WARM_UP_MS = 10_000.0  # time limit of a warm-up, since no client waits for its reply
STOP_TYPES = {"stop": "eos", "length": "limit", "deadline": "limit", "cancelled": "none"}


@dataclass(frozen=True, slots=True)
class LlamaCppReply:
    """A request: its handles, one per prompt, and the format of its reply."""

    handles: tuple[RequestHandle, ...]
    loaded: Loaded
    streams: bool
    fields: tuple[str, ...] | None  # fields to include; None: all
    indent: int  # minimum indentation of the text's lines
    tokens: bool


@with_field_names(INFILL_NAMES)
async def infill(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    reason = missing_fim(loaded)
    if reason:
        raise ServeError(
            f"/infill is not supported by this model ({reason}): load one that does, or use /completion.", 501
        )
    with await read_fields(request) as fields:
        answer = read_infill(fields, loaded)
    return await _send(request, answer)


@with_field_names(COMPLETION_NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        answer = read_completion(fields, loaded)
    return await _send(request, answer)


def read_infill(fields: Fields, loaded: Loaded) -> LlamaCppReply:
    notes = refuse_unread(fields, INFILL)
    extras = [Snippet(part.text("filename", "", MAX_PATH), part.text("text")) for part in fields.parts("input_extra")]
    texts = {
        "prefix": fields.text("input_prefix", "") + fields.text("prompt", ""),
        "suffix": fields.text("input_suffix", ""),
        "snippets": without_secrets(extras, notes),
        "n": read_choices(fields, "n_cmpl"),
    }
    return _read_shared(fields, loaded, [{**texts, "shape": "auto", "heal": True}], notes)


def read_completion(fields: Fields, loaded: Loaded) -> LlamaCppReply:
    notes = refuse_unread(fields, LLAMA_CPP)
    probabilities = fields.whole("n_probs", 0, 0, MAX_LOGPROBS)
    if probabilities and fields.flag("stream"):
        raise RequestError("n_probs can't be used in a stream: remove n_probs or stream.", "n_probs")
    logprobs = {"logprobs": probabilities or None, "n": read_choices(fields, "n_cmpl")}
    prompts = [read_prompt(prompt, fields, loaded, notes) for prompt in fields.prompts("prompt")]
    return _read_shared(fields, loaded, [{**prompt, **logprobs} for prompt in prompts], notes)


def _read_shared(fields: Fields, loaded: Loaded, prompts: Sequence[dict[str, Any]], notes: list[str]) -> LlamaCppReply:
    refuse_window(fields, "repeat_penalty")
    tokens = read_max_tokens(fields, "n_predict", loaded.context, notes, 128)
    limit = fields.number("t_max_predict_ms", 0.0, -1.0, 600_000.0)
    indent, streams = fields.whole("n_indent", 0, 0, MAX_TEXT), fields.flag("stream")
    if indent and streams:
        notes.append("n_indent is not used in a stream")
    settings: dict[str, Any] = {
        "max_tokens": tokens,
        **read_sampling(fields, SAMPLING, COMPLETION_NAMES, hottest=100.0),
        "deadline_ms": None if tokens else WARM_UP_MS,
        "after_first_ms": limit if limit > 0 and tokens else None,
    }
    return LlamaCppReply(
        handles=tuple(RequestHandle(make_request(prompt, settings), notes=notes) for prompt in prompts),
        loaded=loaded,
        streams=streams,
        fields=fields.texts("response_fields") if "response_fields" in fields else None,
        indent=indent,
        tokens=fields.flag("return_tokens"),
    )


async def _send(request: web.Request, answer: LlamaCppReply) -> web.StreamResponse:
    if answer.streams:
        return await stream(request, answer.handles, event_stream(request), lambda event: _encode(event, answer))
    done = await collect(request, answer.handles)
    results = [select_fields(to_json(completion, answer), answer.fields) for completion in done]
    return reply(results[0] if len(results) == 1 else results)


def _encode(event: Event, answer: LlamaCppReply) -> list[bytes]:
    if isinstance(event, TextEvent):
        return [sse({"index": event.choice, "content": event.text, "tokens": [], "stop": False})]
    if isinstance(event, DoneEvent):
        return [sse({**to_json(event.completion, answer), "index": event.choice, "content": ""})]
    return []


def to_json(completion: Completion, answer: LlamaCppReply) -> dict[str, Any]:
    stats, loaded = completion.stats, answer.loaded
    text = completion.text if answer.streams else indented(completion.text, answer.indent)
    return {
        "index": completion.choice,
        "content": text,
        "tokens": list(completion.token_ids) if answer.tokens else [],
        "id_slot": -1,
        "stop": True,
        "model": loaded.name,
        "tokens_predicted": stats.committed,
        "tokens_evaluated": stats.prompt_tokens,
        "generation_settings": {"n_ctx": loaded.context, "n_predict": answer.handles[0].request.max_tokens},
        **_stop(completion, answer, cut=text != completion.text),
        "tokens_cached": stats.prompt_tokens + stats.committed,
        "truncated": stats.trimmed,
        "timings": timings(stats),
        **_probabilities(completion, answer),
        **notes_field(answer.handles, [completion]),
    }


def indented(text: str, least: int) -> str:
    """Return the text up to the first line with less indentation, without trailing blank lines.

    The first line, which continues the cursor's line, and blank lines are not checked.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < least:
            return "\n".join(lines[:number]).rstrip()
    return text


def _stop(completion: Completion, answer: LlamaCppReply, *, cut: bool) -> dict[str, str]:
    """Return why the text ended, and the stop word if the decoded ids continue with one after the text."""
    stop = STOP_TYPES[completion.finish_reason]
    if cut or stop != "eos":
        return {"stop_type": "limit" if cut else stop, "stopping_word": ""}
    tokenizer = answer.loaded.tokenizer
    written = tokenizer.decode_bytes(completion.token_ids).decode("utf-8", "replace")  # includes held bytes
    behind = written.partition(completion.text)[2] if completion.text else written
    words = [word for word in answer.handles[0].request.stop if behind.startswith(word)]
    return {"stop_type": "word" if words else "eos", "stopping_word": max(words, key=len, default="")}


def _probabilities(completion: Completion, answer: LlamaCppReply) -> dict[str, Any]:
    if not completion.logprobs:
        return {}
    names = TokenNames(answer.loaded.tokenizer)
    return {"completion_probabilities": llama(names, place_tokens(names, completion))}


def timings(stats: Stats) -> dict[str, float]:
    new = stats.prompt_tokens - stats.cached_tokens
    predicted_ms = max(0.0, stats.total_ms - stats.prefill_ms)
    return {
        "cache_n": stats.cached_tokens,
        **_speed("prompt", new, stats.prefill_ms),
        **_speed("predicted", stats.committed, predicted_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def _speed(name: str, count: int, spent: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": spent,
        f"{name}_per_token_ms": spent / count if count else 0.0,
        f"{name}_per_second": 1000 * count / spent if spent else 0.0,
    }


def select_fields(result: dict[str, Any], wanted: tuple[str, ...] | None) -> dict[str, Any]:
    """Return only the wanted fields, whose names may be paths with slashes; None selects all."""
    if wanted is None:
        return result
    selected = {}
    for name in wanted:
        value: Any = result
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            selected[name] = value
    return selected


async def health(request: web.Request) -> web.StreamResponse:
    """Report the models, the mode and any write problem; 503 with the loading progress before."""
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    better = {"model": loaded.offer.name, "bytes": loaded.offer.size} if loaded.offer else None
    models: dict[str, Any] = {"model": loaded.model, "target": loaded.name, "drafter": loaded.drafter, "offer": better}
    models["names"] = loaded.names
    engine: dict[str, Any] = {"mode": loaded.mode, "kernel": loaded.kernel, "notes": loaded.notes}
    engine["warning"] = "" if own_key(request) else daemon.warning  # it names the owner's files
    if daemon.source.remote is not None:
        engine["upstream"] = daemon.source.remote
    idle = daemon.state == "idle"
    return reply({"status": "ok", "version": __version__, "open": daemon.num_open, "idle": idle, **models, **engine})


async def props(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    return reply(
        {
            "default_generation_settings": {"n_ctx": loaded.context, "params": {"n_predict": 128}},
            "total_slots": loaded.slots,
            "model_alias": loaded.name,
            "model_path": loaded.name,
            "chat_template": find_chat_template(loaded.tokenizer),
            "build_info": f"codespec {__version__}",
            "caches": {name: asdict(use) for name, use in loaded.caches.items()},
        }
    )


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Tokenize a text with the target's tokenizer, in another thread so that no round waits."""
    daemon = request.app[DAEMON]
    daemon.loaded().demand_tokens()
    tokenizer = daemon.loaded().tokenizer
    with await read_fields(request) as fields:
        text = fields.text("content", most=MAX_CONTENT)
        start = list(tokenizer.bos_ids) if fields.flag("add_special") else []
    async with daemon.encoding:
        return reply({"tokens": start + await asyncio.to_thread(tokenizer.encode, text)})


async def detokenize(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].loaded()
    loaded.demand_tokens()
    tokenizer = loaded.tokenizer
    with await read_fields(request) as fields:
        ids = fields.ids("tokens", len(tokenizer.token_bytes))
    return reply({"content": tokenizer.decode_bytes(ids).decode("utf-8", "replace")})


ROUTES = [
    web.post("/infill", infill),
    web.post("/completion", complete),
    web.post("/tokenize", tokenize),
    web.post("/detokenize", detokenize),
    web.get("/health", health),
    web.get("/props", props),
]
