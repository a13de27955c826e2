"""Reply code shared by the dialects: collected and streamed events, notes, log-probabilities.

Also OpenAI's reply shapes, which its two endpoints and Mistral's use.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from codespec.contract.types import (
    PREDICTION,
    Completion,
    Counts,
    DoneEvent,
    Event,
    RoundEvent,
    TextEvent,
    TokenLogprob,
)
from codespec.errors import CodespecError
from codespec.server.audit_log import CALL
from codespec.server.daemon import DAEMON
from codespec.server.dialects.logprobs import Placed, TokenNames, TokenPlacer
from codespec.server.handles import RequestHandle
from codespec.server.loading import Loaded
from codespec.server.scopes import SCOPES
from codespec.server.wire import StreamReply, error_body, sse

FINISH = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}
DONE = b"data: [DONE]\n\n"
SESSION = re.compile(r"[\w.:-]{1,128}", re.ASCII)


async def collect(request: web.Request, handles: Sequence[RequestHandle]) -> list[Completion]:
    """Return all choices of all handles, numbered consecutively."""
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        for handle in handles:
            submit(request, handle, scope, stack)
        done = [completion for handle in handles for completion in await handle.completions()]
    return [replace(completion, choice=number) for number, completion in enumerate(done)]


async def stream(
    request: web.Request,
    handles: Sequence[RequestHandle],
    reply: StreamReply,
    encode: Callable[[Event], Iterable[bytes]],
    encode_error: Callable[[CodespecError], bytes] = lambda error: sse(error_body(error)),
    last: bytes = b"",
) -> web.StreamResponse:
    """Stream each event as encoded by `encode`, then `last`. Choices are numbered consecutively over all handles.

    An error before the first byte is raised; a later one becomes part of the stream.
    """
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        for handle in handles:
            submit(request, handle, scope, stack)
        try:
            async for event in _numbered(handles):
                for piece in encode(event):
                    await reply.send(piece)
        except CodespecError as error:
            if not reply.response.prepared:
                raise
            last = encode_error(error)
    await reply.send(last)
    return await reply.end()


def session_of(request: web.Request) -> str:
    """Return the client's x-session-id if it is short and plain, else ""."""
    session = request.headers.get("x-session-id", "")
    return session if SESSION.fullmatch(session) else ""


def submit(request: web.Request, handle: RequestHandle, scope: str, stack: ExitStack) -> None:
    """Submit a handle until the stack closes, on its key's account. Raise ServeError."""
    call = request[CALL]
    call.handles.append(handle)
    stack.enter_context(request.app[DAEMON].submit(handle, scope, call.account, session_of(request)))


async def _numbered(handles: Sequence[RequestHandle]) -> AsyncIterator[Event]:
    """Yield the events of each handle in turn. All handles run concurrently, and none waits for its reader."""
    before = 0
    for handle in handles:
        async for event in handle.events():
            yield replace(event, choice=before + event.choice) if before else event
        before += handle.request.n


def notes_field(handles: Iterable[RequestHandle], done: Iterable[Completion]) -> dict[str, list[str]]:
    """Return the daemon's notes on changes to the request, as a field that clients ignore; {} if there are none."""
    notes = dict.fromkeys(note for handle in handles for note in handle.notes)
    notes.update(dict.fromkeys(note for completion in done for note in completion.stats.notes))
    return {"notes": list(notes)} if notes else {}


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """The format of a choice in one of OpenAI's endpoints.

    `whole` formats a choice of a complete reply and `chunk` a piece of a stream, from number, text, finish reason
    (None: not finished) and log-probabilities (None: not requested). `logprobs` formats the log-probabilities for both.
    `opening` returns the first chunk of each choice.
    """

    whole: Callable[[int, str, str | None, Any], dict[str, Any]]
    chunk: Callable[[int, str, str | None, Any], dict[str, Any]]
    logprobs: Callable[[TokenNames, Sequence[Placed]], Any] = lambda names, placed: None
    opening: Callable[[int], dict[str, Any] | None] = lambda choice: None


def new_frame(prefix: str, kind: str, loaded: Loaded) -> dict[str, Any]:
    """Return the fields shared by all objects of one OpenAI reply."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": loaded.name,
        "system_fingerprint": "codespec",
    }


def usage(done: Sequence[Completion], choices: int) -> dict[str, Any]:
    """Return token counts of all choices and prompts; a prompt counts once, regardless of its number of `choices`.

    Of the client's prediction, only verified tokens count: the accepted and the rejected ones.
    """
    prompts = [completion.stats for completion in done[::choices]]
    prompt, written = sum(s.prompt_tokens for s in prompts), sum(completion.stats.committed for completion in done)
    cached = {"cached_tokens": sum(s.cached_tokens for s in prompts)}
    counts = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return {**counts, "prompt_tokens_details": cached, "completion_tokens_details": predicted_tokens(done)}


def predicted_tokens(done: Sequence[Completion]) -> dict[str, int]:
    """Return the accepted and rejected tokens of the clients' predictions, under OpenAI's names."""
    found = [completion.stats.by_source.get(PREDICTION, Counts()) for completion in done]
    accepted = sum(counts.accepted for counts in found)
    rejected = sum(counts.drafted for counts in found) - accepted
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


def whole_reply(
    frame: dict[str, Any],
    shape: ChoiceShape,
    names: TokenNames | None,
    handles: Sequence[RequestHandle],
    done: Sequence[Completion],
) -> dict[str, Any]:
    """Return a complete reply without its usage."""
    choices = []
    for number, completion in enumerate(done):
        logprobs = None
        if names is not None:
            placer = TokenPlacer(names)
            placer.add(completion.logprobs)
            logprobs = shape.logprobs(names, placer.take(len(completion.text)))
        choices.append(shape.whole(number, completion.text, FINISH[completion.finish_reason], logprobs))
    return {**frame, "choices": choices, **notes_field(handles, done)}


@dataclass(slots=True)
class Chunks:
    """The pieces of a streamed reply; the last one contains the usage, if it was requested."""

    frame: dict[str, Any]
    shape: ChoiceShape
    handles: Sequence[RequestHandle]
    names: TokenNames | None = None  # set if log-probabilities were requested
    with_usage: bool = False
    opened: bool = False
    lengths: dict[int, int] = field(default_factory=dict)  # characters sent, by choice
    placers: dict[int, TokenPlacer] = field(default_factory=dict)
    done: dict[int, Completion] = field(default_factory=dict)

    def encode(self, event: Event) -> list[bytes]:
        """Return the chunks for an event."""
        pieces = [] if self.opened else self._open()
        choice = event.choice
        if isinstance(event, TextEvent):
            self.lengths[choice] = self.lengths.get(choice, 0) + len(event.text)
            pieces.append(self._chunk(self.shape.chunk(choice, event.text, None, self._logprobs(choice))))
        elif isinstance(event, RoundEvent):
            self._place(choice, event.logprobs)
        else:
            pieces += self._end(event)
        return pieces

    @property
    def _choices(self) -> int:
        return sum(handle.request.n for handle in self.handles)

    def _open(self) -> list[bytes]:
        self.opened = True
        opening = [self.shape.opening(choice) for choice in range(self._choices)]
        return [self._chunk(choice) for choice in opening if choice is not None]

    def _end(self, event: DoneEvent) -> list[bytes]:
        choice, completion = event.choice, event.completion
        self.done[choice] = completion
        self._place(choice, completion.logprobs)
        last = self.shape.chunk(choice, "", FINISH[completion.finish_reason], self._logprobs(choice))
        pieces = [self._chunk(last, **notes_field(self.handles, [completion]))]
        if self.with_usage and len(self.done) == self._choices:
            done = [self.done[number] for number in sorted(self.done)]
            pieces.append(sse({**self.frame, "choices": [], "usage": usage(done, self.handles[0].request.n)}))
        return pieces

    def _place(self, choice: int, logprobs: Sequence[TokenLogprob]) -> None:
        if self.names is not None:
            self.placers.setdefault(choice, TokenPlacer(self.names)).add(logprobs)

    def _logprobs(self, choice: int) -> Any:
        """Return the unsent log-probabilities of tokens that begin in the text sent so far, or None."""
        if self.names is None or choice not in self.placers:
            return None
        placed = self.placers[choice].take(self.lengths.get(choice, 0))
        return self.shape.logprobs(self.names, placed) if placed else None

    def _chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        return sse({**self.frame, "choices": [choice], **more})
