"""Code shared by the dialects: read a request's fields, submit the request, and collect or stream the reply.

Each dialect has a table of the fields that its API documents but codespec does not support. An unsupported field that
would change the reply is refused by name, unless its value is neutral (has no effect). An unsupported field that
editors send with every request only adds a note to the reply, because a refusal would disable their completions. Fields
that affect only speed or memory (`cache_prompt`, `id_slot`, `keep_alive`, `num_gpu`) and unknown fields are ignored.
"""

from __future__ import annotations

import codecs
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from codespec.api.limits import MAX_CHOICES, MAX_COUNT, MAX_SEED
from codespec.api.types import LIMITS, Completion, CompletionRequest, Event, Snippet, TokenLogprob
from codespec.client.connections import SESSION_HEADER
from codespec.engine.job import RequestHandle
from codespec.errors import CodespecError, RequestError
from codespec.exclusions.secrets import is_secret
from codespec.exclusions.secrets import without_secrets as without_secret_lines
from codespec.server.daemon import DAEMON, Loaded
from codespec.server.middleware import ACCOUNT, SCOPES
from codespec.server.wire import Fields, StreamReply, error_body, sse
from codespec.text.edit_formats import read_edit_prompt
from codespec.text.fim import MAX_CHARS
from codespec.text.fim_templates import MAX_FILES, FimMissing, find_template, split_ready_made
from codespec.text.tokenizer import TextTokenizer

Prompt = str | tuple[int, ...]
Handler = Callable[..., Coroutine[Any, Any, web.StreamResponse]]
Placed = tuple[TokenLogprob, int]  # a token and the offset of its first character in the text
MIN_LOGPROB = -9999.0  # replaces minus infinity, which JSON can't represent
SESSION = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # a valid x-session-id; others are ignored


class Unread(NamedTuple):
    """An unsupported field. If `noted` is true, a value that is not neutral only adds a note to the reply."""

    why: str  # the reason, for the error or the note
    neutral: tuple[Any, ...] = ()
    noted: bool = False


PENALTY = "the engine has only repeat_penalty"
SAMPLER = "the engine has no such sampler"
TEXT = "only text is completed"
MAX_LIKELY = {  # samplers of both llama.cpp and Ollama
    "frequency_penalty": Unread(PENALTY, (0,)),
    "presence_penalty": Unread(PENALTY, (0,)),
    "mirostat": Unread(SAMPLER, (0,)),
    "typical_p": Unread(SAMPLER, (1,)),
    "tfs_z": Unread(SAMPLER, (1,)),
}


def refuse_unread(fields: Fields, table: Mapping[str, Unread]) -> list[str]:
    """Return notes about unsupported fields. Raise RequestError if an unsupported field would change the reply."""
    notes = []
    for name, row in table.items():
        if not row.noted:
            fields.refuse_unless(name, row.neutral, row.why)
        elif fields.differs(name, row.neutral):
            notes.append(f"{fields.label(name)} is not used: {row.why}")
    return notes


def refuse_window(fields: Fields) -> None:
    """Raise RequestError if `repeat_last_n` limits a repetition penalty other than 1."""
    if fields.differs("repeat_penalty", (1,)):
        fields.refuse_unless("repeat_last_n", (-1,), "repeat_penalty counts all tokens")


def with_field_names(names: Mapping[str, str]) -> Callable[[Handler], Handler]:
    """Decorate a handler so that its errors name the client's fields, not CompletionRequest's."""

    def wrap(handler: Handler) -> Handler:
        async def handle(*arguments: Any) -> web.StreamResponse:
            try:
                return await handler(*arguments)
            except RequestError as error:
                if type(error) is not RequestError or error.field not in names:
                    raise
                raise RequestError(replace(error.fault, field=names[error.field])) from error

        return handle

    return wrap


def read_max_tokens(
    fields: Fields, name: str, context: int, notes: list[str], default: int = 64, least: int = -2
) -> int:
    """Return the number of tokens to generate: the field's value, but half the context if it is negative or larger."""
    wanted = fields.whole(name, default, least, MAX_COUNT)
    granted = min(wanted if wanted >= 0 else context, max(1, context // 2))
    if wanted > granted:
        notes.append(f"{fields.label(name)} was cut to {granted}, half of the context: the prompt needs the other half")
    return granted


def read_seed(fields: Fields, name: str) -> int:
    """Return the seed, or a random seed if the client sends a negative number."""
    seed = fields.whole(name, 0, -MAX_SEED - 1, MAX_SEED)
    return seed if seed >= 0 else secrets.randbits(32)


def read_choices(fields: Fields, name: str = "n") -> int:
    return fields.whole(name, 1, 1, MAX_CHOICES)


SAMPLING: dict[str, Callable[[Fields, str], Any]] = {
    "top_k": lambda fields, name: max(0, fields.whole(name, 0, -1, MAX_COUNT)),  # 0 and less: all tokens
    "top_p": lambda fields, name: max(1e-6, fields.number(name, 1.0, *LIMITS["top_p"].bounds)),
    "min_p": lambda fields, name: fields.number(name, 0.0, *LIMITS["min_p"].bounds),
    "repetition_penalty": lambda fields, name: fields.number(name, 1.0, *LIMITS["repetition_penalty"].bounds),
    "seed": read_seed,
    "stop": lambda fields, name: fields.texts(name),
}


def read_sampling(
    fields: Fields,
    wanted: Collection[str] = SAMPLING,
    names: Mapping[str, str] = MappingProxyType({}),
    hottest: float = 2.0,
) -> dict[str, Any]:
    """Return the temperature (at most `hottest`) and the `wanted` fields. `names` maps fields to the client's names."""
    values = {name: SAMPLING[name](fields, names.get(name, name)) for name in wanted}
    return {"temperature": fields.number("temperature", 0.0, 0.0, hottest), **values}


def read_prompt(
    prompt: Prompt, fields: Fields, loaded: Loaded, notes: list[str], name: str = "prompt"
) -> dict[str, Any]:
    """Return fields of a CompletionRequest: prefix, suffix and snippets, or token ids.

    The client sends a `suffix` field, or writes the fill-in-the-middle markers of a known model family into its prompt
    (the field `name`), or does both. A next-edit prompt also determines a prediction and stop texts.
    """
    suffix = fields.text("suffix", "")
    if suffix:
        require_fim(loaded, "suffix")
    if not isinstance(prompt, str):
        if suffix:
            raise RequestError("suffix can't be used with a prompt of token ids: send the prompt as text.", "suffix")
        return {"prefix": prompt_text(prompt, loaded), "prompt_ids": prompt}
    edit = None if suffix else read_edit(prompt, loaded)
    if edit is not None:
        return edit
    ready_made = split_ready_made(prompt)
    if ready_made is None or (suffix and suffix.strip() != ready_made.suffix.strip()):
        return {"prefix": prompt, "suffix": suffix}
    require_fim(loaded, name, "send plain text, without markers")
    if ready_made.left_out:
        notes.append(f"the first {ready_made.left_out} other files were left out: at most {MAX_FILES} are read")
    files = without_secrets((Snippet(path, text) for path, text in ready_made.files), notes)
    return {"prefix": ready_made.prefix, "suffix": ready_made.suffix, "snippets": files}


def read_edit(prompt: str, loaded: Loaded) -> dict[str, Any] | None:
    """Return the request fields for a next-edit prompt, or None if the prompt is too long or of another kind."""
    found = read_edit_prompt(prompt) if len(prompt) <= loaded.context * MAX_CHARS else None
    if found is None:
        return None
    parts: dict[str, Any] = {"prefix": prompt, "prediction": found.prediction, "stop": found.stops}
    if loaded.mode == "upstream":  # that server parses control tokens itself
        return parts
    ids = found.ids(loaded.tokenizer)
    return None if ids is None else {**parts, "prompt_ids": tuple(ids), "ends_at_control": True}


def make_request(texts: Mapping[str, Any], settings: Mapping[str, Any]) -> CompletionRequest:
    """Combine `texts` with `settings`, whose prediction takes precedence; the stop texts of both apply."""
    prediction = settings.get("prediction") or texts.get("prediction", "")
    stops = tuple(dict.fromkeys((*settings.get("stop", ()), *texts.get("stop", ()))))
    return CompletionRequest(**{**texts, **settings, "prediction": prediction, "stop": stops})


def prompt_text(prompt: Prompt, loaded: Loaded) -> str:
    """Return a prompt as text, without unknown token ids, which the engine refuses later."""
    if isinstance(prompt, str):
        return prompt
    token_bytes = loaded.tokenizer.token_bytes
    known = (token_bytes[token] for token in prompt if 0 <= token < len(token_bytes))
    return b"".join(known).decode("utf-8", "replace")


def without_secrets(snippets: Iterable[Snippet], notes: list[str]) -> tuple[Snippet, ...]:
    """Return the snippets without lines that hold secrets. Leave out files whose names suggest secrets."""
    listed = list(snippets)
    safe = [snippet for snippet in listed if not is_secret(snippet.path)]
    if len(safe) < len(listed):
        notes.append(f"{len(listed) - len(safe)} of {len(listed)} other files may hold secrets and were left out")
    return tuple(replace(snippet, text=without_secret_lines(snippet.text)) for snippet in safe)


def missing_fim(loaded: Loaded) -> str:
    """Return why the model can't fill in the middle, or "" if it can."""
    if loaded.no_fim:
        return loaded.no_fim
    template = find_template(loaded.tokenizer)
    return template.reason if isinstance(template, FimMissing) else ""


def require_fim(loaded: Loaded, name: str, fix: str = "leave it out") -> None:
    """Raise RequestError for the field `name` if the model can't fill in the middle."""
    if reason := missing_fim(loaded):
        raise RequestError(f"{name} can't be used ({reason}): {fix}.", name)


@asynccontextmanager
async def submitted(request: web.Request, handles: Iterable[RequestHandle]) -> AsyncIterator[None]:
    """Submit requests on the client's account, and abort the unfinished ones on exit. Raise ServeError."""
    session = request.headers.get(SESSION_HEADER, "")
    session = session if SESSION.fullmatch(session) else ""
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(request.app[DAEMON].submit(handle, scope, request.get(ACCOUNT), session))
        yield


async def collect(request: web.Request, handles: Sequence[RequestHandle]) -> list[Completion]:
    """Return the choices of all handles, numbered consecutively."""
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
    """Stream the events of all handles, with choices numbered consecutively, and then `last`.

    If nothing has been sent yet, an error is raised, else the error is sent instead of `last`.
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
    before = 0
    for handle in handles:  # all handles run concurrently, and their unread events are buffered
        async for event in handle.events():
            yield replace(event, choice=before + event.choice) if before else event
        before += handle.request.n


def notes_field(handles: Iterable[RequestHandle], done: Iterable[Completion]) -> dict[str, list[str]]:
    """Return the notes about a request as a field of its reply; {} if there are none."""
    notes = dict.fromkeys(note for handle in handles for note in handle.notes)
    notes.update(dict.fromkeys(note for completion in done for note in completion.stats.notes))
    return {"notes": list(notes)} if notes else {}


class TokenNames:
    """The names of a tokenizer's tokens in replies with log-probabilities."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.token_bytes = tokenizer.token_bytes
        self._controls = {number: name for name, number in tokenizer.vocab.items() if number in tokenizer.special_ids}

    def text(self, token: int) -> str:
        """Return a token's text, a control token's name, or OpenAI's notation for bytes that are not valid UTF-8."""
        data = self.token_bytes[token]
        try:
            return self._controls.get(token) or data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def entry(self, token: TokenLogprob) -> dict[str, Any]:
        """Return a token's log-probability and its likeliest alternatives in OpenAI's format."""
        top = [self._pair(*pair) for pair in token.top]
        return {**self._pair(token.id, token.logprob), "top_logprobs": top}

    def _pair(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.text(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(self.token_bytes[token])}


class TokenPlacer:
    """The tokens of one choice with their character offsets."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._placed: list[Placed] = []
        self._length = 0  # characters in the text of all tokens so far
        self._taken = 0

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Add the next tokens. Skip tokens that a repeated round reports again, and tokens after a gap."""
        for token in logprobs:
            if token.place == len(self._placed):
                self._placed.append((token, self._length))
                self._length += len(self._decoder.decode(self._names.token_bytes[token.id]))

    def take(self, length: int) -> list[Placed]:
        """Return the tokens that begin in the first `length` characters and were not returned before."""
        taken = list(takewhile(lambda placed: placed[1] < length, self._placed[self._taken :]))
        self._taken += len(taken)
        return taken


def place_tokens(names: TokenNames, completion: Completion) -> list[Placed]:
    placer = TokenPlacer(names)
    placer.add(completion.logprobs)
    return placer.take(len(completion.text))
