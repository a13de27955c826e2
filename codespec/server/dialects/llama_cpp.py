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
from codespec.server.dialects import shared
from codespec.server.dialects.shared import Unread
from codespec.server.middleware import own_key
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse
from codespec.text.tokenizer import TextTokenizer

INFILL_NAMES = {"prefix": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict", "n": "n_cmpl"}
COMPLETION_NAMES = {
    "prefix": "prompt",
    "prompt_ids": "prompt",
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
    "n": "n_cmpl",
}
MAX_CONTENT = 1 << 18  # characters of a text to tokenize, which takes a few tenths of a second
WARM_UP_MS = 10_000.0  # time limit of a request for no tokens, whose reply no client waits for
STOP_TYPES = {"stop": "eos", "length": "limit", "deadline": "limit", "cancelled": "none"}
FREE = "output can't be constrained"
LLAMA_CPP = {
    **shared.MAX_LIKELY,
    "dry_multiplier": Unread(shared.SAMPLER, (0,)),
    "xtc_probability": Unread(shared.SAMPLER, (0,)),
    "top_n_sigma": Unread(shared.SAMPLER, (-1, 0)),
    "dynatemp_range": Unread(shared.SAMPLER, (0,)),
    "adaptive_target": Unread(shared.SAMPLER, (-1,)),
    "min_keep": Unread(shared.SAMPLER, (0, 1)),
    "logit_bias": Unread("the engine has no token biases", ([], {})),
    "ignore_eos": Unread("the model determines the length of its text", (False,)),
    "grammar": Unread(FREE, ("",)),
    "json_schema": Unread(FREE),
    "lora": Unread("the daemon serves one model, with its adapter merged", ([], "")),
    "image_data": Unread(shared.TEXT, ([],)),
    "post_sampling_probs": Unread("only the model's own probabilities are sent", (False,)),
    "samplers": Unread("top_k, top_p, min_p and temperature apply in the engine's order", ([], ""), noted=True),
    "return_progress": Unread("a prompt's progress is not sent", (False,), noted=True),
    "timings_per_token": Unread("timings are sent at the end", (False,), noted=True),
}
INFILL = {**LLAMA_CPP, "n_probs": Unread("only /completion sends probabilities", (0,))}


@dataclass(frozen=True, slots=True)
class LlamaCppReply:
    """The handles of a request and the options of its reply."""

    handles: tuple[RequestHandle, ...]  # one for each prompt
    loaded: Loaded
    streams: bool
    fields: tuple[str, ...] | None  # fields to include; None: all
    indent: int  # minimum indentation of the text's lines
    tokens: bool  # whether to include token ids


@shared.with_field_names(INFILL_NAMES)
async def infill(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].ready()
    if reason := shared.missing_fim(loaded):
        sentence = f"/infill is not supported by this model ({reason}): load another model, or use /completion."
        raise ServeError(sentence, 501)
    with await read_fields(request) as fields:
        answer = read_infill(fields, loaded)
    return await _send(request, answer)


@shared.with_field_names(COMPLETION_NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    loaded = request.app[DAEMON].ready()
    with await read_fields(request) as fields:
        answer = read_completion(fields, loaded)
    return await _send(request, answer)


def read_infill(fields: Fields, loaded: Loaded) -> LlamaCppReply:
    notes = shared.refuse_unread(fields, INFILL)
    extras = [Snippet(part.text("filename", "", MAX_PATH), part.text("text")) for part in fields.parts("input_extra")]
    texts = {
        "prefix": fields.text("input_prefix", "") + fields.text("prompt", ""),
        "suffix": fields.text("input_suffix", ""),
        "snippets": shared.without_secrets(extras, notes),
        "n": shared.read_choices(fields, "n_cmpl"),
    }
    return _read_shared(fields, loaded, [{**texts, "shape": "auto", "heal": True}], notes)


def read_completion(fields: Fields, loaded: Loaded) -> LlamaCppReply:
    notes = shared.refuse_unread(fields, LLAMA_CPP)
    probabilities = fields.whole("n_probs", 0, 0, MAX_LOGPROBS)
    if probabilities and fields.flag("stream"):
        raise RequestError("n_probs can't be used in a stream: remove n_probs or stream.", "n_probs")
    logprobs = {"logprobs": probabilities or None, "n": shared.read_choices(fields, "n_cmpl")}
    prompts = [shared.read_prompt(prompt, fields, loaded, notes) for prompt in fields.prompts("prompt")]
    return _read_shared(fields, loaded, [{**prompt, **logprobs} for prompt in prompts], notes)


def _read_shared(fields: Fields, loaded: Loaded, prompts: Sequence[dict[str, Any]], notes: list[str]) -> LlamaCppReply:
    shared.refuse_window(fields)
    tokens = shared.read_max_tokens(fields, "n_predict", loaded.context, notes, 128)
    limit = fields.number("t_max_predict_ms", 0.0, -1.0, 600_000.0)
    indent, streams = fields.whole("n_indent", 0, 0, MAX_TEXT), fields.flag("stream")
    if indent and streams:
        notes.append("n_indent is not used in a stream")
    settings: dict[str, Any] = {
        "max_tokens": tokens,
        **shared.read_sampling(fields, names=COMPLETION_NAMES, hottest=100.0),
        "deadline_ms": None if tokens else WARM_UP_MS,
        "after_first_ms": limit if limit > 0 and tokens else None,
    }
    return LlamaCppReply(
        handles=tuple(RequestHandle(shared.make_request(prompt, settings), notes=notes) for prompt in prompts),
        loaded=loaded,
        streams=streams,
        fields=fields.texts("response_fields") if "response_fields" in fields else None,
        indent=indent,
        tokens=fields.flag("return_tokens"),
    )


async def _send(request: web.Request, answer: LlamaCppReply) -> web.StreamResponse:
    if answer.streams:
        return await shared.stream(request, answer.handles, event_stream(request), lambda event: _encode(event, answer))
    done = await shared.collect(request, answer.handles)
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
    probabilities: dict[str, Any] = {}
    if completion.logprobs:
        names = shared.TokenNames(loaded.tokenizer)
        entries = [{"id": token.id, **names.entry(token)} for token, _ in shared.place_tokens(names, completion)]
        probabilities["completion_probabilities"] = entries
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
        **probabilities,
        **shared.notes_field(answer.handles, [completion]),
    }


def indented(text: str, least: int) -> str:
    """Cut a text before the first line indented by less than `least`, ignoring the first line and blank lines."""
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < least:
            return "\n".join(lines[:number]).rstrip()
    return text


def _stop(completion: Completion, answer: LlamaCppReply, *, cut: bool) -> dict[str, str]:
    """Return why a text ended, and its stop word, which is found after the text in the decoded token ids."""
    stop = STOP_TYPES[completion.finish_reason]
    if cut or stop != "eos":
        return {"stop_type": "limit" if cut else stop, "stopping_word": ""}
    tokenizer = answer.loaded.tokenizer
    written = tokenizer.decode_bytes(completion.token_ids).decode("utf-8", "replace")
    rest = written.partition(completion.text)[2] if completion.text else written
    words = [word for word in answer.handles[0].request.stop if rest.startswith(word)]
    return {"stop_type": "word" if words else "eos", "stopping_word": max(words, key=len, default="")}


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
    """Return the `wanted` fields (None: all). A name may be a path with slashes, such as `timings/draft_n`."""
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
    """Return the daemon's models, mode and warnings. Raise ServeError while the models are loading."""
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    better = {"model": loaded.offer.name, "bytes": loaded.offer.size} if loaded.offer else None
    models: dict[str, Any] = {"model": loaded.model, "target": loaded.name, "drafter": loaded.drafter, "offer": better}
    models["names"] = loaded.names
    engine: dict[str, Any] = {"mode": loaded.mode, "kernel": loaded.kernel, "notes": loaded.notes}
    engine["warning"] = "" if own_key(request) else daemon.warning  # only for the owner, whose files it names
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
    """Tokenize a text with the target's tokenizer, in another thread, so that other requests do not wait."""
    daemon = request.app[DAEMON]
    tokenizer = _find_tokenizer(daemon.loaded())
    with await read_fields(request) as fields:
        text = fields.text("content", most=MAX_CONTENT)
        start = list(tokenizer.bos_ids) if fields.flag("add_special") else []
    async with daemon.encoding:
        return reply({"tokens": start + await asyncio.to_thread(tokenizer.encode, text)})


async def detokenize(request: web.Request) -> web.StreamResponse:
    tokenizer = _find_tokenizer(request.app[DAEMON].loaded())
    with await read_fields(request) as fields:
        ids = fields.ids("tokens", len(tokenizer.token_bytes))
    return reply({"content": tokenizer.decode_bytes(ids).decode("utf-8", "replace")})


def _find_tokenizer(loaded: Loaded) -> TextTokenizer:
    if loaded.mode == "upstream":
        raise ServeError("The daemon lacks the model's tokenizer: send the request to the upstream server.", 501)
    return loaded.tokenizer


ROUTES = [
    web.post("/infill", infill),
    web.post("/completion", complete),
    web.post("/tokenize", tokenize),
    web.post("/detokenize", detokenize),
    web.get("/health", health),
    web.get("/props", props),
]
