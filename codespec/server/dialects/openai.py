"""OpenAI's legacy completions, for minuet, llm-ls, Continue and Zed, and the list of models.

A request with a suffix fills in the middle. So does a prompt with the markers of a known model family, which is split
and rebuilt for the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from aiohttp import web

from codespec.contract.limits import MOST_CHOICES, MOST_PATH
from codespec.contract.types import Completion, CompletionRequest
from codespec.errors import RequestError
from codespec.server.chat_template import find_chat_template
from codespec.server.daemon import DAEMON
from codespec.server.dialects.logprobs import TokenNames, legacy
from codespec.server.dialects.replies import DONE, ChoiceShape, Chunks, collect, new_frame, stream, usage, whole_reply
from codespec.server.dialects.requests import (
    missing_fim,
    prompt_text,
    read_include_usage,
    read_max_tokens,
    read_prediction,
    read_prompt,
    read_sampling,
    with_field_names,
)
from codespec.server.handles import RequestHandle
from codespec.server.loading import Loaded
from codespec.server.wire import Fields, Refused, clip, event_stream, reply

NAMES = {"prefix": "prompt", "prompt_ids": "prompt"}
MOST_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """The reply format that the client requested, and the request handles, one per prompt."""

    handles: tuple[RequestHandle, ...]
    echoes: tuple[str, ...]  # prompts to repeat in the reply
    choices: int  # choices to send per prompt
    with_logprobs: bool

    @property
    def written(self) -> int:
        """Number of choices to generate per prompt."""
        return self.handles[0].request.n

    def echo(self, choice: int) -> str:
        """Return the prompt to put before a choice."""
        return self.echoes[choice // self.choices]

    def opening(self, choice: int) -> dict[str, Any] | None:
        """Return the first chunk of a streamed choice, or None."""
        return _choice(choice, self.echo(choice), None, None) if self.echo(choice) else None


@with_field_names(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    """Continue prompts or fill in the middle, in one reply or as a stream."""
    loaded = request.app[DAEMON].loaded()
    with fields:
        answer, streams = read_request(fields, loaded), fields.flag("stream")
        with_usage = streams and read_include_usage(fields)
    shape = ChoiceShape(_choice, _choice, legacy, answer.opening)
    frame = new_frame("cmpl", "text_completion", loaded)
    names = TokenNames(loaded.engine.target.tokenizer) if answer.with_logprobs else None
    if streams:
        chunks = Chunks(frame, shape, answer.handles, names, with_usage)
        return await stream(request, answer.handles, event_stream(request), chunks.encode, last=DONE)
    done = await collect(request, answer.handles)
    body = whole_reply(frame, shape, names, answer.handles, best(done, answer.written, answer.choices))
    for choice in body["choices"]:
        choice["text"] = answer.echo(choice["index"]) + choice["text"]
    return reply({**body, "usage": usage(done, answer.written)})


def read_request(fields: Fields, loaded: Loaded) -> OpenAIReply:
    """Read a request. Raise RequestError for the first invalid field."""
    fields.text("model", "", MOST_PATH)
    notes: list[str] = []
    sampling, echo = read_sampling(fields), fields.flag("echo")
    choices = sampling["n"]
    written = fields.whole("best_of", choices, choices, MOST_CHOICES)
    if written > choices and fields.flag("stream"):
        raise RequestError("best_of can't choose in a stream: leave it or stream out.", "best_of")
    logprobs = fields.whole("logprobs", 0, 0, MOST_LOGPROBS) if "logprobs" in fields else None
    if echo and logprobs is not None:
        raise RequestError("logprobs can't be given for an echoed prompt: leave one of the two out.", "logprobs")
    sampling["n"] = written
    sampling["logprobs"] = 0 if logprobs is None and written > choices else logprobs
    sampling["prediction"] = read_prediction(fields)
    sampling["max_tokens"] = read_max_tokens(fields, "max_tokens", loaded.context, notes)
    prompts = fields.prompts("prompt")
    read = [read_prompt(prompt, fields, loaded, notes) for prompt in prompts]
    handles = tuple(RequestHandle(CompletionRequest(**one, **sampling), notes=notes) for one in read)
    echoes = tuple(prompt_text(prompt, loaded) if echo else "" for prompt in prompts)
    return OpenAIReply(handles, echoes, choices, logprobs is not None)


def best(done: Sequence[Completion], written: int, choices: int) -> list[Completion]:
    """Return each prompt's choices with the highest mean log-probability per token.

    Return all choices if no more were generated than requested.
    """
    if written == choices:
        return list(done)
    groups = (done[start : start + written] for start in range(0, len(done), written))
    return list(chain.from_iterable(sorted(group, key=_likelihood, reverse=True)[:choices] for group in groups))


def _likelihood(completion: Completion) -> float:
    return sum(token.logprob for token in completion.logprobs) / max(1, len(completion.logprobs))


def _choice(number: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


async def models(request: web.Request) -> web.StreamResponse:
    """List the one model that is served."""
    return reply({"object": "list", "data": [_model(request.app[DAEMON].loaded())]})


async def model(request: web.Request) -> web.StreamResponse:
    """Return the model by its name. Raise Refused (404) for any other name."""
    loaded, name = request.app[DAEMON].loaded(), request.match_info["name"]
    if name != loaded.name:
        raise Refused(f"model {clip(name)} is not served here: ask for {loaded.name}.", "model", 404)
    return reply(_model(loaded))


def _model(loaded: Loaded) -> dict[str, Any]:
    """Return the model in OpenAI's format, with the additional fields of Mistral and vLLM."""
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
