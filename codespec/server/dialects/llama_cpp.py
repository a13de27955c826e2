"""llama.cpp's server as llama.vim, llama.vscode and Continue use it: /infill and /completion.

Knows their fields and what they read of a reply (WIRE.md §1.1); knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from codespec.errors import RequestError, ServeError
from codespec.server.daemon import DAEMON
from codespec.server.dialects.openai import read_prompt
from codespec.server.dialects.spelled import Shown, Spelling, llama
from codespec.server.dialects.streams import (
    collect,
    missing_fim,
    read_choices,
    read_seed,
    read_tokens,
    read_top_k,
    speaking,
    stream,
    told,
    without_secrets,
)
from codespec.server.loading import Loaded
from codespec.server.tickets import Ask, Priority
from codespec.server.wire import MOST_TEXT, Fields, event_stream, read_fields, reply, sse
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, Snippet, Stats, TextEvent

INFILL_NAMES = {"prefix": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict", "n": "n_cmpl"}
COMPLETION_NAMES = {
    "prefix": "prompt",
    "prompt_ids": "prompt",
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "logprobs": "n_probs",
}
WARM_UP_MS = 10_000.0  # nobody reads a warm-up's reply, so it need not wait for ever
STOP_TYPES = {"stop": "eos", "length": "limit", "deadline": "limit", "cancelled": "none"}


@dataclass(frozen=True, slots=True)
class Order:
    """A body as read: an ask a prompt, and how the client wants to be told."""

    asks: tuple[Ask, ...]
    loaded: Loaded
    streams: bool
    fields: tuple[str, ...] | None  # of the reply; None: all
    indent: int  # of the least indented line that belongs to the text
    tokens: bool


@speaking(INFILL_NAMES)
async def infill(request: web.Request) -> web.StreamResponse:
    """A completion between two texts; `n_predict: 0` only prefills."""
    loaded = request.app[DAEMON].loaded()
    reason = missing_fim(loaded)
    if reason:
        raise ServeError(
            f"/infill is not supported by this model ({reason}): load one that can, or use /completion.", 501
        )
    with await read_fields(request) as fields:
        order = read_infill(fields, loaded)
    return await _answer(request, order)


@speaking(COMPLETION_NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """Plain continuations: the target's tokens only."""
    loaded = request.app[DAEMON].loaded()
    with await read_fields(request) as fields:
        order = read_completion(fields, loaded)
    return await _answer(request, order)


def read_infill(fields: Fields, loaded: Loaded) -> Order:
    """Raises RequestError for the first field that can't be used."""
    notes: list[str] = []
    extras = [Snippet(part.text("filename", "", 4096), part.text("text")) for part in fields.parts("input_extra")]
    texts = {
        "prefix": fields.text("input_prefix", "") + fields.text("prompt", ""),
        "suffix": fields.text("input_suffix", ""),
        "snippets": without_secrets(extras, notes),
        "n": read_choices(fields, "n_cmpl"),
    }
    return _order(fields, loaded, [{**texts, "shape": "auto", "heal": True}], notes)


def read_completion(fields: Fields, loaded: Loaded) -> Order:
    """Raises RequestError for the first field that can't be used."""
    notes: list[str] = []
    probabilities = fields.whole("n_probs", 0, 0, 20)
    if probabilities and fields.flag("stream"):
        raise RequestError("n_probs is told of whole replies only: leave it or stream out.", "n_probs")
    logprobs = {"logprobs": probabilities or None}
    prompts = [read_prompt(prompt, fields, loaded, notes) for prompt in fields.prompts("prompt")]
    return _order(fields, loaded, [{**prompt, **logprobs} for prompt in prompts], notes)


def _order(fields: Fields, loaded: Loaded, prompts: Sequence[dict[str, Any]], notes: list[str]) -> Order:
    tokens = read_tokens(fields, "n_predict", loaded.context, notes, 128)
    limit = fields.number("t_max_predict_ms", 0.0, -1.0, 600_000.0)
    indent, streams = fields.whole("n_indent", 0, 0, MOST_TEXT), fields.flag("stream")
    if indent and streams:
        notes.append("n_indent is not used in a stream")
    settings: dict[str, Any] = {
        "max_tokens": tokens,
        "temperature": fields.number("temperature", 0.0, 0.0, 100.0),
        "top_k": read_top_k(fields),
        "top_p": fields.number("top_p", 1.0, 1e-6, 1.0),
        "min_p": fields.number("min_p", 0.0, 0.0, 1.0),
        "repetition_penalty": fields.number("repeat_penalty", 1.0, 0.01, 100.0),
        "seed": read_seed(fields),
        "stop": fields.texts("stop"),
        "deadline_ms": None if tokens else WARM_UP_MS,
    }
    return Order(
        asks=tuple(
            Ask(
                CompletionRequest(**prompt, **settings),
                Priority.INTERACTIVE if tokens else Priority.WARM_UP,
                after_first_ms=limit if limit > 0 and tokens else None,
                notes=tuple(notes),
            )
            for prompt in prompts
        ),
        loaded=loaded,
        streams=streams,
        fields=fields.texts("response_fields") if "response_fields" in fields else None,
        indent=indent,
        tokens=fields.flag("return_tokens"),
    )


async def _answer(request: web.Request, order: Order) -> web.StreamResponse:
    if order.streams:
        return await stream(request, order.asks, event_stream(request), lambda event: _pieces(event, order))
    done = await collect(request, order.asks)
    results = [choose(to_json(completion, order), order.fields) for completion in done]
    return reply(results[0] if len(results) == 1 else results)


def _pieces(event: Event, order: Order) -> list[bytes]:
    if isinstance(event, TextEvent):
        return [sse({"index": event.choice, "content": event.text, "tokens": [], "stop": False})]
    if isinstance(event, DoneEvent):
        return [sse({**to_json(event.completion, order), "index": event.choice, "content": ""})]
    return []


def to_json(completion: Completion, order: Order) -> dict[str, Any]:
    """A finished text as llama.cpp tells it."""
    stats, loaded = completion.stats, order.loaded
    text = completion.text if order.streams else indented(completion.text, order.indent)
    return {
        "index": completion.choice,
        "content": text,
        "tokens": list(completion.token_ids) if order.tokens else [],
        "id_slot": -1,
        "stop": True,
        "model": loaded.name,
        "tokens_predicted": stats.committed,
        "tokens_evaluated": stats.prompt_tokens,
        "generation_settings": {"n_ctx": loaded.context, "n_predict": order.asks[0].request.max_tokens},
        **_stop(completion, order, cut=text != completion.text),
        "tokens_cached": stats.prompt_tokens + stats.committed,
        "truncated": any("was trimmed" in note for note in stats.notes),
        "timings": timings(stats),
        **_probabilities(completion, order),
        **told(order.asks, [completion]),
    }


def indented(text: str, least: int) -> str:
    """The text before its first line, blank ones aside, that is indented less; the first line is the cursor's own."""
    lines = text.split("\n")
    for place, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < least:
            return "\n".join(lines[:place]).rstrip()
    return text


def _stop(completion: Completion, order: Order, *, cut: bool) -> dict[str, str]:
    """Why the text ended, and at which word: the stop that the tokens go on with behind the text."""
    stop = STOP_TYPES[completion.finish_reason]
    if cut or stop != "eos":
        return {"stop_type": "limit" if cut else stop, "stopping_word": ""}
    tokenizer = order.loaded.engine.target.tokenizer
    written = tokenizer.decode_bytes(completion.token_ids).decode("utf-8", "replace")  # with what healing gave back
    behind = written.partition(completion.text)[2] if completion.text else written
    words = [word for word in order.asks[0].request.stop if behind.startswith(word)]
    return {"stop_type": "word" if words else "eos", "stopping_word": max(words, key=len, default="")}


def _probabilities(completion: Completion, order: Order) -> dict[str, Any]:
    if not completion.logprobs:
        return {}
    spelling = Spelling(order.loaded.engine.target.tokenizer)
    shown = Shown(spelling)
    shown.add(completion.logprobs)
    return {"completion_probabilities": llama(spelling, shown.hand_out(len(completion.text)))}


def timings(stats: Stats) -> dict[str, float]:
    """Counts and milliseconds of prompt and continuation."""
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


def choose(result: dict[str, Any], wanted: tuple[str, ...] | None) -> dict[str, Any]:
    """Only the wanted fields, under their names with slashes; all of them where none are named."""
    if wanted is None:
        return result
    found = {}
    for name in wanted:
        value: Any = result
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[name] = value
    return found


ROUTES = [web.post("/infill", infill), web.post("/completion", complete)]
