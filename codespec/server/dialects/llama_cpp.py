"""llama.cpp's server as llama.vim, llama.vscode and Continue use it: /infill, /completion, /health, /props, /tokenize.

Knows their fields and what they read of a reply (WIRE.md §1.1); knows no engine.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from codespec import __version__
from codespec.server.daemon import DAEMON
from codespec.server.dialects.streams import read_seed, read_tokens, speaking, stream
from codespec.server.loading import Loaded
from codespec.server.secrets import is_secret
from codespec.server.tickets import Ask, Priority
from codespec.server.wire import Fields, event_stream, read_fields, reply, sse
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, Snippet, Stats, TextEvent

INFILL_NAMES = {"prefix": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict", "n": "n_cmpl"}
COMPLETION_NAMES = {"prefix": "prompt", "max_tokens": "n_predict", "repetition_penalty": "repeat_penalty"}
WARM_UP_MS = 10_000.0  # nobody reads a warm-up's reply, so it need not wait for ever
STOP_TYPES = {"stop": "eos", "length": "limit", "deadline": "limit", "cancelled": "none"}


@speaking(INFILL_NAMES)
async def infill(request: web.Request) -> web.StreamResponse:
    """A completion between two texts; `n_predict: 0` only prefills."""
    loaded = request.app[DAEMON].loaded()
    fields = await read_fields(request)
    return await _answer(request, fields, read_infill(fields, loaded.context), loaded)


@speaking(COMPLETION_NAMES)
async def complete(request: web.Request) -> web.StreamResponse:
    """A plain continuation: the target's tokens only."""
    loaded = request.app[DAEMON].loaded()
    fields = await read_fields(request)
    return await _answer(request, fields, read_completion(fields, loaded.context), loaded)


def read_infill(fields: Fields, context: int) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    texts = {
        "prefix": fields.text("input_prefix", "") + fields.text("prompt", ""),
        "suffix": fields.text("input_suffix", ""),
        "snippets": tuple(_extras(fields)),
        "n": fields.whole("n_cmpl", 1, 1, 16),
    }
    return _ask(fields, context, texts, in_editor=True)


def read_completion(fields: Fields, context: int) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    fields.refuse_unless("n_probs", (0,), "the engine gives no probabilities")
    return _ask(fields, context, {"prefix": fields.text("prompt")}, in_editor=False)


def _ask(fields: Fields, context: int, texts: dict[str, Any], *, in_editor: bool) -> Ask:
    tokens = read_tokens(fields, "n_predict", context, 128)
    limit = fields.number("t_max_predict_ms", 0.0, -1.0, 600_000.0)
    request = CompletionRequest(
        **texts,
        max_tokens=max(1, tokens),
        temperature=fields.number("temperature", 0.0, 0.0, 100.0),
        top_k=max(0, fields.whole("top_k", 0)),
        top_p=fields.number("top_p", 1.0, 1e-6, 1.0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repeat_penalty", 1.0, 0.01, 100.0),
        seed=read_seed(fields),
        stop=fields.texts("stop"),
        shape="auto" if in_editor else "raw",
        heal=in_editor,
        deadline_ms=None if tokens else WARM_UP_MS,
    )
    priority = Priority.INTERACTIVE if tokens else Priority.WARM_UP
    return Ask(request, priority, after_first_ms=limit if limit > 0 and tokens else None)


def _extras(fields: Fields) -> list[Snippet]:
    parts = [(part.text("filename", "", 4096), part.text("text")) for part in fields.parts("input_extra")]
    return [Snippet(path, text) for path, text in parts if not is_secret(path)]


async def _answer(request: web.Request, fields: Fields, ask: Ask, loaded: Loaded) -> web.StreamResponse:
    if fields.flag("stream"):
        return await stream(request, ask, event_stream(request), lambda event: _pieces(event, loaded))
    wanted = fields.texts("response_fields") if "response_fields" in fields else None
    done = await request.app[DAEMON].complete(ask)
    warm_up = ask.priority == Priority.WARM_UP
    results = [choose(to_json(completion, loaded, warm_up=warm_up), wanted) for completion in done]
    return reply(results[0] if len(results) == 1 else results)


def _pieces(event: Event, loaded: Loaded) -> list[bytes]:
    if isinstance(event, TextEvent):
        return [sse({"index": event.choice, "content": event.text, "tokens": [], "stop": False})]
    if isinstance(event, DoneEvent):
        return [sse({**to_json(event.completion, loaded), "content": ""})]
    return []


def to_json(completion: Completion, loaded: Loaded, *, warm_up: bool = False) -> dict[str, Any]:
    """A finished text as llama.cpp tells it; of a warm-up no text."""
    stats = completion.stats
    return {
        "index": completion.choice,
        "content": "" if warm_up else completion.text,
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": loaded.name,
        "tokens_predicted": stats.committed,
        "tokens_evaluated": stats.prompt_tokens,
        "generation_settings": {"n_ctx": loaded.context, "n_predict": stats.committed},
        "stop_type": STOP_TYPES[completion.finish_reason],
        "stopping_word": "",
        "tokens_cached": stats.prompt_tokens + stats.committed,
        "truncated": any("was trimmed" in note for note in stats.notes),
        "timings": timings(stats),
    }


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


async def health(request: web.Request) -> web.StreamResponse:
    """Ready, or 503 and how far it is."""
    daemon = request.app[DAEMON]
    daemon.loaded()
    return reply({"status": "ok", "version": __version__, "open": daemon.num_open})


async def props(request: web.Request) -> web.StreamResponse:
    """What llama.cpp's clients ask about the server."""
    loaded = request.app[DAEMON].loaded()
    return reply(
        {
            "default_generation_settings": {"n_ctx": loaded.context, "params": {"n_predict": 128}},
            "total_slots": loaded.slots,
            "model_alias": loaded.name,
            "model_path": loaded.name,
            "chat_template": "",
            "build_info": f"codespec {__version__}",
        }
    )


async def tokenize(request: web.Request) -> web.StreamResponse:
    """The target's ids of a text."""
    daemon = request.app[DAEMON]
    tokenizer = daemon.loaded().engine.target.tokenizer
    fields = await read_fields(request)
    text = fields.text("content")
    start = list(tokenizer.bos_ids) if fields.flag("add_special") else []
    return reply({"tokens": start + await daemon.worker.call(lambda: tokenizer.encode(text))})


ROUTES = [
    web.post("/infill", infill),
    web.post("/completion", complete),
    web.get("/health", health),
    web.get("/props", props),
    web.post("/tokenize", tokenize),
]
