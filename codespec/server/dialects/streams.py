"""What all dialects do alike: collect or stream what their tickets bring, say errors in their own fields' names, read
shared fields, and tell what was left out.

Knows tickets and replies; knows no dialect.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec

from aiohttp import web

from codespec.errors import CodespecError, RequestError
from codespec.secret_files import is_secret
from codespec.server.daemon import DAEMON
from codespec.server.loading import Loaded
from codespec.server.scopes import SCOPES
from codespec.server.tickets import Ask, Ticket
from codespec.server.wire import MOST_COUNT, Fields, Lines, error_body, sse
from codespec.text.fim_templates import FimMissing, find_template
from codespec.types import Completion, Event, Snippet

MOST_CHOICES = 16  # texts for one prompt
MOST_SEED = (1 << 63) - 1

Rest = ParamSpec("Rest")
Handler = Callable[Concatenate[web.Request, Rest], Coroutine[Any, Any, web.StreamResponse]]


def speaking(names: Mapping[str, str]) -> Callable[[Handler[Rest]], Handler[Rest]]:
    """For a handler whose fields have other names than CompletionRequest's: complaints say the client's."""

    def wrap(handler: Handler[Rest]) -> Handler[Rest]:
        async def handle(request: web.Request, /, *rest: Rest.args, **named: Rest.kwargs) -> web.StreamResponse:
            try:
                return await handler(request, *rest, **named)
            except RequestError as error:
                if type(error) is not RequestError or error.field not in names:
                    raise
                name = names[error.field]
                raise RequestError(str(error).replace(error.field, name, 1), name) from error

        return handle

    return wrap


async def collect(request: web.Request, asks: Sequence[Ask]) -> list[Completion]:
    """All choices of all asks, numbered through."""
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        tickets = [stack.enter_context(request.app[DAEMON].ask(ask, scope)) for ask in asks]
        done = [completion for ticket in tickets for completion in await ticket.completions()]
    return [replace(completion, choice=number) for number, completion in enumerate(done)]


async def stream(
    request: web.Request,
    asks: Sequence[Ask],
    lines: Lines,
    say: Callable[[Event], Iterable[bytes]],
    tell_error: Callable[[CodespecError], bytes] = lambda error: sse(error_body(error)),
    last: bytes = b"",
) -> web.StreamResponse:
    """Sends what `say` makes of each event, choices numbered through all asks, then `last`. What fails before the first
    byte is raised; later it is told in the stream.
    """
    scope = await request.app[SCOPES].of(request)
    with ExitStack() as stack:
        tickets = [stack.enter_context(request.app[DAEMON].ask(ask, scope)) for ask in asks]
        try:
            async for event in _numbered(tickets):
                for piece in say(event):
                    await lines.send(piece)
        except CodespecError as error:
            if not lines.response.prepared:
                raise
            last = tell_error(error)
    await lines.send(last)
    return await lines.end()


async def _numbered(tickets: Sequence[Ticket]) -> AsyncIterator[Event]:
    """The events of all tickets, one ticket behind the other: they run together, and none waits for its reader."""
    before = 0
    for ticket in tickets:
        async for event in ticket.events():
            yield replace(event, choice=before + event.choice) if before else event
        before += ticket.ask.request.n


def read_tokens(fields: Fields, name: str, context: int, notes: list[str], default: int = 64, least: int = -2) -> int:
    """How many tokens to write at most. Clients ask for more than a context holds; half of it goes to the prompt. A
    negative number asks for all that fit.
    """
    asked = fields.whole(name, default, least, MOST_COUNT)
    granted = min(asked if asked >= 0 else context, max(1, context // 2))
    if asked > granted:
        notes.append(f"{fields.label(name)} was cut to {granted}, half of the context: the prompt needs the other")
    return granted


def read_seed(fields: Fields, name: str = "seed") -> int:
    """The seed; a negative one means any."""
    seed = fields.whole(name, 0, -MOST_SEED - 1, MOST_SEED)
    return seed if seed >= 0 else secrets.randbits(32)


def read_choices(fields: Fields, name: str = "n") -> int:
    """How many texts to write for each prompt."""
    return fields.whole(name, 1, 1, MOST_CHOICES)


def read_top_k(fields: Fields) -> int:
    """Of how many of the likeliest tokens one is drawn; 0, and less, means of all."""
    return max(0, fields.whole("top_k", 0, -1, MOST_COUNT))


def without_secrets(snippets: Iterable[Snippet], notes: list[str]) -> tuple[Snippet, ...]:
    """The snippets of files that hold no secrets, by their names."""
    found = list(snippets)
    kept = tuple(snippet for snippet in found if not is_secret(snippet.path))
    if len(kept) < len(found):
        notes.append(f"{len(found) - len(kept)} of {len(found)} other files may hold secrets and were left out")
    return kept


def missing_fim(loaded: Loaded) -> str:
    """Why the model cannot fill in between two texts; "" if it can."""
    found = find_template(loaded.engine.target.tokenizer)
    return found.reason if isinstance(found, FimMissing) else ""


def demand_fim(loaded: Loaded, name: str, mend: str = "leave it out") -> None:
    """Raises RequestError where a field needs a model that fills in, and this one does not."""
    reason = missing_fim(loaded)
    if reason:
        raise RequestError(f"{name} can't be used ({reason}): {mend}.", name)


def told(asks: Iterable[Ask], done: Iterable[Completion]) -> dict[str, list[str]]:
    """What happened to the request that its client did not ask for, in a field that clients ignore; {} for nothing."""
    notes = dict.fromkeys(note for ask in asks for note in ask.notes)
    notes.update(dict.fromkeys(note for completion in done for note in completion.stats.notes))
    return {"notes": list(notes)} if notes else {}
