"""OpenAI's legacy completions as minuet, llm-ls, Continue and Zed send them, and the list of models.

A suffix makes it fill in; so does a prompt that spells a known family's markers itself, which is taken apart and built
again for the target. Knows fields and replies (WIRE.md §1.3); knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from aiohttp import web

from codespec.errors import RequestError
from codespec.server.chat import find_chat_template
from codespec.server.daemon import DAEMON
from codespec.server.dialects.frames import DONE, Chunks, Form, new_frame, read_sampling, usage, whole
from codespec.server.dialects.spelled import Spelling, legacy
from codespec.server.dialects.streams import (
    MOST_CHOICES,
    collect,
    demand_fim,
    missing_fim,
    read_tokens,
    speaking,
    stream,
    without_secrets,
)
from codespec.server.loading import Loaded
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, Refused, clip, event_stream, reply
from codespec.text.fim_templates import split_ready_made
from codespec.types import Completion, CompletionRequest, Snippet

NAMES = {"prefix": "prompt", "prompt_ids": "prompt"}
MOST_LOGPROBS = 5

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A body as read: an ask a prompt, what of each prompt is repeated, how many of an ask's choices are told."""

    asks: tuple[Ask, ...]
    echoes: tuple[str, ...]
    choices: int
    with_logprobs: bool

    @property
    def written(self) -> int:
        """How many choices of each prompt are written."""
        return self.asks[0].request.n

    def echo(self, choice: int) -> str:
        """What is put before a choice."""
        return self.echoes[choice // self.choices]

    def opening(self, choice: int) -> dict[str, Any] | None:
        """What a streamed choice begins with."""
        return _choice(choice, self.echo(choice), None, None) if self.echo(choice) else None


@speaking(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    """Continuations or fill-ins, whole or streamed."""
    loaded = request.app[DAEMON].loaded()
    with fields:
        order, streams = read_order(fields, loaded), fields.flag("stream")
        with_usage = streams and reads_usage(fields)
    form = Form(_choice, _choice, legacy, order.opening)
    frame = new_frame("cmpl", "text_completion", loaded)
    spelling = Spelling(loaded.engine.target.tokenizer) if order.with_logprobs else None
    if streams:
        chunks = Chunks(frame, form, order.asks, spelling, with_usage)
        return await stream(request, order.asks, event_stream(request), chunks.say, last=DONE)
    done = await collect(request, order.asks)
    body = whole(frame, form, spelling, order.asks, best(done, order.written, order.choices))
    for choice in body["choices"]:
        choice["text"] = order.echo(choice["index"]) + choice["text"]
    return reply({**body, "usage": usage(done, order.written)})


def read_order(fields: Fields, loaded: Loaded) -> Order:
    """Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    notes: list[str] = []
    sampling, echo = read_sampling(fields), fields.flag("echo")
    choices = sampling["n"]
    written = fields.whole("best_of", choices, choices, MOST_CHOICES)
    if written > choices and fields.flag("stream"):
        raise RequestError("best_of can't choose in a stream: leave it or stream out.", "best_of")
    logprobs = fields.whole("logprobs", 0, 0, MOST_LOGPROBS) if "logprobs" in fields else None
    if echo and logprobs is not None:
        raise RequestError("logprobs can't be told of an echoed prompt: leave one of the two out.", "logprobs")
    sampling["n"] = written
    sampling["logprobs"] = 0 if logprobs is None and written > choices else logprobs
    sampling["max_tokens"] = read_tokens(fields, "max_tokens", loaded.context, notes)
    prompts = fields.prompts("prompt")
    read = [read_prompt(prompt, fields, loaded, notes) for prompt in prompts]
    asks = tuple(Ask(CompletionRequest(**one, **sampling), notes=tuple(notes)) for one in read)
    echoes = tuple(_to_text(prompt, loaded) if echo else "" for prompt in prompts)
    return Order(asks, echoes, choices, logprobs is not None)


def read_prompt(prompt: Prompt, fields: Fields, loaded: Loaded, notes: list[str]) -> dict[str, Any]:
    """Prefix, suffix and other files, whether the client sends them apart or put together with markers; or ids."""
    suffix = fields.text("suffix", "")
    if suffix:
        demand_fim(loaded, "suffix")
    if not isinstance(prompt, str):
        if suffix:
            raise RequestError("suffix can't go with a prompt of token ids: send the prompt as text.", "suffix")
        return {"prefix": _to_text(prompt, loaded), "prompt_ids": prompt}
    ready_made = None if suffix else split_ready_made(prompt)
    if ready_made is None:
        return {"prefix": prompt, "suffix": suffix}
    demand_fim(loaded, "prompt", "send plain text, without markers")
    files = without_secrets((Snippet(path, text) for path, text in ready_made.files), notes)
    return {"prefix": ready_made.prefix, "suffix": ready_made.suffix, "snippets": files}


def _to_text(prompt: Prompt, loaded: Loaded) -> str:
    """A prompt as text. Ids that the model does not have are left to the engine's complaint."""
    if isinstance(prompt, str):
        return prompt
    token_bytes = loaded.engine.target.tokenizer.token_bytes
    known = (token_bytes[token] for token in prompt if 0 <= token < len(token_bytes))
    return b"".join(known).decode("utf-8", "replace")


def reads_usage(fields: Fields) -> bool:
    """Whether the client wants the usage at the end of a stream."""
    options = fields.part("stream_options")
    return options is not None and options.flag("include_usage")


def best(done: Sequence[Completion], written: int, choices: int) -> list[Completion]:
    """Of each prompt's choices those with the likeliest tokens, on average; all, if no more were written than asked."""
    if written == choices:
        return list(done)
    groups = (done[place : place + written] for place in range(0, len(done), written))
    return list(chain.from_iterable(sorted(group, key=_likelihood, reverse=True)[:choices] for group in groups))


def _likelihood(completion: Completion) -> float:
    return sum(told.logprob for told in completion.logprobs) / max(1, len(completion.logprobs))


def _choice(number: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


async def models(request: web.Request) -> web.StreamResponse:
    """The one model that is served."""
    return reply({"object": "list", "data": [_model(request.app[DAEMON].loaded())]})


async def model(request: web.Request) -> web.StreamResponse:
    """That model by its name."""
    loaded, name = request.app[DAEMON].loaded(), request.match_info["name"]
    if name != loaded.name:
        raise Refused(f"model {clip(name)} is not served here: ask for {loaded.name}.", "model", 404)
    return reply(_model(loaded))


def _model(loaded: Loaded) -> dict[str, Any]:
    """As OpenAI's clients read it, and what Mistral's and vLLM's want beside."""
    chats, fills = bool(find_chat_template(loaded.engine.target.tokenizer)), not missing_fim(loaded)
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


ROUTES = [web.get("/v1/models", models), web.get("/v1/models/{name:.+}", model)]
