"""Replies of all dialects: collected and streamed events, notes, and log-probabilities with the tokens as text.

This includes OpenAI's reply formats, for its two endpoints and Mistral's.
"""

from __future__ import annotations

import codecs
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from codespec.api.types import (
    PREDICTION,
    Completion,
    Counts,
    Event,
    RoundEvent,
    TextEvent,
    TokenLogprob,
)
from codespec.client.connections import SESSION_HEADER
from codespec.engine.job import RequestHandle
from codespec.errors import CodespecError
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.security import ACCOUNT, SCOPES
from codespec.server.wire import StreamReply, error_body, event_stream, reply, sse
from codespec.text.tokenizer import TextTokenizer

FINISH = {"stop": "stop", "length": "length", "deadline": "length", "cancelled": "stop"}
DONE = b"data: [DONE]\n\n"
MIN_LOGPROB = -9999.0  # JSON has no infinity
Placed = tuple[TokenLogprob, int]  # a token and its first character in the text
SESSION = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # an x-session-id; others are ignored


@asynccontextmanager
async def submitted(request: web.Request, handles: Iterable[RequestHandle]) -> AsyncIterator[None]:
    """Submit handles on their key's account. The end of the block aborts those that still run. Raise ServeError."""
    session = request.headers.get(SESSION_HEADER, "")
    session = session if SESSION.fullmatch(session) else ""
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(request.app[DAEMON].submit(handle, scope, request.get(ACCOUNT), session))
        yield


async def collect(request: web.Request, handles: Sequence[RequestHandle]) -> list[Completion]:
    """Return all choices of all handles, numbered consecutively."""
    async with submitted(request, handles):
        done = [completion for handle in handles for completion in await handle.completions()]
    return [replace(completion, choice=number) for number, completion in enumerate(done)]


async def stream(
    request: web.Request,
    handles: Sequence[RequestHandle],
    response: StreamReply,
    encode: Callable[[Event], Iterable[bytes]],
    encode_error: Callable[[CodespecError], bytes] = lambda error: sse(error_body(error)),
    last: bytes = b"",
) -> web.StreamResponse:
    """Stream each event as encoded by `encode`, then `last`. Choices are numbered consecutively over all handles.

    An error before the first byte is raised; a later one becomes part of the stream.
    """
    async with submitted(request, handles):
        try:
            async for event in _numbered(handles):
                for piece in encode(event):
                    await response.send(piece)
        except CodespecError as error:
            if not response.response.prepared:
                raise
            last = encode_error(error)
    await response.send(last)
    return await response.end()


async def _numbered(handles: Sequence[RequestHandle]) -> AsyncIterator[Event]:
    """Yield the events of each handle in turn. All handles run concurrently, and none waits for its reader."""
    before = 0
    for handle in handles:
        async for event in handle.events():
            yield replace(event, choice=before + event.choice) if before else event
        before += handle.request.n


def notes_field(handles: Iterable[RequestHandle], done: Iterable[Completion]) -> dict[str, list[str]]:
    """Return the daemon's notes for the client as a field of a reply; {} if there are none."""
    notes = dict.fromkeys(note for handle in handles for note in handle.notes)
    notes.update(dict.fromkeys(note for completion in done for note in completion.stats.notes))
    return {"notes": list(notes)} if notes else {}


class TokenNames:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes
        self._controls = {number: name for name, number in tokenizer.vocab.items() if number in tokenizer.special_ids}

    def text(self, token: int) -> str:
        """Return a token's text, a control token's name, or OpenAI's notation for bytes that are not valid UTF-8."""
        spelled = self.bytes(token)
        try:
            return self._controls.get(token) or spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def bytes(self, token: int) -> bytes:
        return self.token_bytes[token]


class TokenPlacer:
    """The tokens of one choice with their character offsets, consumed as their text is sent.

    Tokens may be added in batches of any size, and repeatedly: a computation that restarts repeats them.
    """

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._placed: list[Placed] = []
        self._length = 0  # characters in the text of all tokens so far
        self._taken = 0

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Add the next tokens. Skip tokens that are known already, and tokens after a gap until it is filled."""
        for token in logprobs:
            if token.place == len(self._placed):
                self._placed.append((token, self._length))
                self._length += len(self._decoder.decode(self._names.bytes(token.id)))

    def take(self, length: int) -> list[Placed]:
        """Return the remaining tokens that begin in the first `length` characters, with their offsets; consume them."""
        taken = []
        for placed in self._placed[self._taken :]:
            if placed[1] >= length:
                break
            taken.append(placed)
        self._taken += len(taken)
        return taken


def place_tokens(names: TokenNames, completion: Completion) -> list[Placed]:
    placer = TokenPlacer(names)
    placer.add(completion.logprobs)
    return placer.take(len(completion.text))


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """The format of one of OpenAI's endpoints: the prefix of its ids, its objects' names, and its choices.

    `whole` lays out the text of a complete choice, `chunk` a piece of a streamed one, and `opening` begins each stream.
    `logprobs` formats log-probabilities; None: choices have no such field.
    """

    prefix: str
    kinds: tuple[str, str]  # of a complete reply and of a chunk
    whole: Callable[[str], dict[str, Any]]
    chunk: Callable[[str], dict[str, Any]]
    opening: dict[str, Any] | None = None
    logprobs: Callable[[TokenNames, Sequence[Placed]], Any] | None = None

    def choice(
        self, number: int, content: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        """Return a choice; without `finish`, it goes on."""
        more = {} if self.logprobs is None else {"logprobs": logprobs}
        return {"index": number, **content, **more, "finish_reason": finish}


async def respond(
    request: web.Request,
    handles: Sequence[RequestHandle],
    loaded: Loaded,
    shape: ChoiceShape,
    *,
    streams: bool,
    with_usage: bool = False,
    with_logprobs: bool = False,
    echoes: Sequence[str] = (),
    choose: Callable[[Sequence[Completion]], Sequence[Completion]] = lambda done: done,
) -> web.StreamResponse:
    """Reply whole, with the completions that `choose` keeps, or as a stream. `echoes` go before the choices."""
    names = TokenNames(loaded.tokenizer) if with_logprobs else None
    frame = {
        "id": f"{shape.prefix}-{secrets.token_hex(12)}",
        "object": shape.kinds[streams],
        "created": int(time.time()),
        "model": loaded.name,
        "system_fingerprint": "codespec",
    }
    if streams:
        chunks = Chunks(frame, shape, handles, names, with_usage, echoes)
        return await stream(request, handles, event_stream(request), chunks.encode, last=DONE)
    done = await collect(request, handles)
    kept = choose(done)
    choices = []
    for number, completion in enumerate(kept):
        placed = names and shape.logprobs and shape.logprobs(names, place_tokens(names, completion))
        text = echoes[number] + completion.text if echoes else completion.text
        choices.append(shape.choice(number, shape.whole(text), FINISH[completion.finish_reason], placed))
    notes = notes_field(handles, kept)
    return reply({**frame, "choices": choices, **notes, "usage": usage(done, handles[0].request.n)})


def usage(done: Sequence[Completion], choices: int) -> dict[str, Any]:
    """Return token counts of all prompts and choices; a prompt counts once, regardless of its number of `choices`.

    Only the verified tokens of the client's prediction count, as accepted or rejected.
    """
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


class Chunks:
    """The pieces of a streamed reply; the last one contains the usage, if it was requested."""

    def __init__(
        self,
        frame: dict[str, Any],
        shape: ChoiceShape,
        handles: Sequence[RequestHandle],
        names: TokenNames | None,  # set if log-probabilities were requested
        with_usage: bool,
        echoes: Sequence[str],
    ) -> None:
        self._frame, self._shape, self._handles, self._with_usage = frame, shape, handles, with_usage
        self._names = names
        choices = range(sum(handle.request.n for handle in handles))
        self._lengths = [0 for _ in choices]  # characters sent
        self._placers = [TokenPlacer(names) for _ in choices] if names else []
        self._done: dict[int, Completion] = {}
        openings = [shape.chunk(echo) if echo else shape.opening for echo in echoes or [""] * len(choices)]
        self._openings = [(choice, opening) for choice, opening in enumerate(openings) if opening]

    def encode(self, event: Event) -> list[bytes]:
        pieces = [self._chunk(choice, opening) for choice, opening in self._openings]
        self._openings = []
        choice = event.choice
        if isinstance(event, TextEvent):
            self._lengths[choice] += len(event.text)
            pieces.append(self._chunk(choice, self._shape.chunk(event.text), logprobs=self._logprobs(choice)))
        elif isinstance(event, RoundEvent):
            self._place(choice, event.logprobs)
        else:
            pieces += self._end(choice, event.completion)
        return pieces

    def _end(self, choice: int, completion: Completion) -> list[bytes]:
        self._done[choice] = completion
        self._place(choice, completion.logprobs)
        finish, logprobs = FINISH[completion.finish_reason], self._logprobs(choice)
        notes = notes_field(self._handles, [completion])
        pieces = [self._chunk(choice, self._shape.chunk(""), finish, logprobs, **notes)]
        if self._with_usage and len(self._done) == len(self._lengths):
            done = [self._done[number] for number in sorted(self._done)]
            pieces.append(sse({**self._frame, "choices": [], "usage": usage(done, self._handles[0].request.n)}))
        return pieces

    def _place(self, choice: int, logprobs: Sequence[TokenLogprob]) -> None:
        if self._names is not None:
            self._placers[choice].add(logprobs)

    def _logprobs(self, choice: int) -> Any:
        """Return the unsent log-probabilities of tokens that begin in the text sent so far, or None."""
        if self._names is None or self._shape.logprobs is None:
            return None
        placed = self._placers[choice].take(self._lengths[choice])
        return self._shape.logprobs(self._names, placed) if placed else None

    def _chunk(
        self, choice: int, content: dict[str, Any], finish: str | None = None, logprobs: Any = None, **more: Any
    ) -> bytes:
        usage = {"usage": None} if self._with_usage else {}  # as OpenAI sends it before the last chunk
        return sse({**self._frame, "choices": [self._shape.choice(choice, content, finish, logprobs)], **more, **usage})


def legacy(names: TokenNames, placed: Sequence[Placed]) -> dict[str, Any]:
    return {
        "tokens": [names.text(token.id) for token, _ in placed],
        "token_logprobs": [_finite(token.logprob) for token, _ in placed],
        "top_logprobs": [_legacy_top(names, token) for token, _ in placed],
        "text_offset": [start for _, start in placed],
    }


def _legacy_top(names: TokenNames, token: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the token itself; for ids with the same text, the likeliest."""
    top: dict[str, float] = {}
    for number, value in (*token.top, (token.id, token.logprob)):
        top.setdefault(names.text(number), _finite(value))
    return top


def chat(names: TokenNames, placed: Sequence[Placed]) -> dict[str, Any]:
    return {"content": [_entry(names, token) for token, _ in placed], "refusal": None}


def llama(names: TokenNames, placed: Sequence[Placed]) -> list[dict[str, Any]]:
    return [{"id": token.id, **_entry(names, token)} for token, _ in placed]


def _entry(names: TokenNames, token: TokenLogprob) -> dict[str, Any]:
    return {**_token(names, token.id, token.logprob), "top_logprobs": [_token(names, *pair) for pair in token.top]}


def _token(names: TokenNames, number: int, value: float) -> dict[str, Any]:
    return {"token": names.text(number), "logprob": _finite(value), "bytes": list(names.bytes(number))}


def _finite(value: float) -> float:
    return max(value, MIN_LOGPROB)
