"""OpenAI's legacy completions as minuet, llm-ls, Continue and Zed send them, and the list of models.

A suffix makes it fill in; so does a prompt that spells a known family's markers itself, which is taken apart and built
again for the target. Knows fields and replies (WIRE.md §1.3); knows no engine.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from codespec.server.daemon import DAEMON
from codespec.server.dialects.streams import read_seed, read_tokens, speaking, stream
from codespec.server.loading import Loaded
from codespec.server.secrets import is_secret
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, event_stream, reply, sse
from codespec.text.fim_templates import split_ready_made
from codespec.types import Completion, CompletionRequest, DoneEvent, Event, Snippet, TextEvent

NAMES = {"prefix": "prompt"}
FINISH = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}
MakeChoice = Callable[[int, str, str | None], dict[str, Any]]
DONE = b"data: [DONE]\n\n"


@speaking(NAMES)
async def complete(request: web.Request, fields: Fields) -> web.StreamResponse:
    """A continuation or a fill-in, whole or streamed."""
    loaded = request.app[DAEMON].loaded()
    ask = read_ask(fields, loaded.context)
    frame = new_frame("cmpl", "text_completion", loaded)
    if not fields.flag("stream"):
        done = await request.app[DAEMON].complete(ask)
        choices = [_choice(c.choice, c.text, FINISH[c.finish_reason]) for c in done]
        return reply({**frame, "choices": choices, "usage": usage(done)})
    options = fields.part("stream_options")
    chunks = Chunks(frame, _choice, ask.request.n if options and options.flag("include_usage") else 0)
    return await stream(request, ask, event_stream(request), chunks.say, last=DONE)


def read_ask(fields: Fields, context: int) -> Ask:
    """Raises RequestError for the first field that can't be used."""
    fields.text("model", "", 4096)
    choices = fields.whole("n", 1, 1, 16)
    fields.refuse_unless("logprobs", (0, False), "the engine gives no probabilities")
    fields.refuse_unless("echo", (False,), "the prompt is not repeated")
    fields.refuse_unless("best_of", (choices,), "all choices are returned")
    for name in ("frequency_penalty", "presence_penalty"):
        fields.refuse_unless(name, (0,), "repetition_penalty is what the engine has")
    fields.refuse_unless("logit_bias", ({},), "tokens are the engine's own")
    request = CompletionRequest(
        **read_prompt(fields),
        max_tokens=max(1, read_tokens(fields, "max_tokens", context)),
        temperature=fields.number("temperature", 0.0, 0.0, 2.0),
        top_k=max(0, fields.whole("top_k", 0)),
        top_p=max(1e-6, fields.number("top_p", 1.0, 0.0, 1.0)),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        seed=read_seed(fields),
        n=choices,
        stop=fields.texts("stop"),
    )
    return Ask(request)


def read_prompt(fields: Fields) -> dict[str, Any]:
    """Prefix, suffix and other files, whether the client sends them apart or put together with markers."""
    prompt, suffix = fields.text("prompt"), fields.text("suffix", "")
    ready_made = None if suffix else split_ready_made(prompt)
    if ready_made is None:
        return {"prefix": prompt, "suffix": suffix}
    files = tuple(Snippet(path, text) for path, text in ready_made.files if not is_secret(path))
    return {"prefix": ready_made.prefix, "suffix": ready_made.suffix, "snippets": files}


def new_frame(prefix: str, kind: str, loaded: Loaded) -> dict[str, Any]:
    """What every object of one reply begins with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": loaded.name,
        "system_fingerprint": "codespec",
    }


def usage(done: Sequence[Completion]) -> dict[str, Any]:
    """Tokens of the prompt, counted once, and of all choices."""
    prompt, written = done[0].stats.prompt_tokens, sum(completion.stats.committed for completion in done)
    cached = {"cached_tokens": done[0].stats.cached_tokens}
    counts = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return {**counts, "prompt_tokens_details": cached}


class Chunks:
    """The pieces of a streamed reply; `choice` makes the entry of one. Usage comes behind the choice `usage_after`."""

    def __init__(self, frame: dict[str, Any], choice: MakeChoice, usage_after: int = 0) -> None:
        self._frame = frame
        self._choice = choice
        self._usage_after = usage_after
        self._done: list[Completion] = []

    def say(self, event: Event) -> list[bytes]:
        """What an event becomes; behind the last choice the usage, if it was asked for."""
        if isinstance(event, TextEvent):
            return [self._chunk(self._choice(event.choice, event.text, None))]
        if not isinstance(event, DoneEvent):
            return []
        self._done.append(event.completion)
        pieces = [self._chunk(self._choice(event.choice, "", FINISH[event.completion.finish_reason]))]
        if len(self._done) == self._usage_after:
            pieces.append(sse({**self._frame, "choices": [], "usage": usage(self._done)}))
        return pieces

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return sse({**self._frame, "choices": [choice]})


def _choice(number: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": None, "finish_reason": finish}


async def models(request: web.Request) -> web.StreamResponse:
    """The one model that is served."""
    loaded = request.app[DAEMON].loaded()
    model = {"id": loaded.name, "object": "model", "created": 0, "owned_by": "codespec"}
    return reply({"object": "list", "data": [{**model, "max_model_len": loaded.context}]})


ROUTES = [web.get("/v1/models", models)]
