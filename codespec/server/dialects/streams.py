"""What all dialects do alike: stream a ticket's events, say errors in their own fields' names, read shared numbers.

Knows tickets and replies; knows no dialect.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec

from aiohttp import web

from codespec.errors import CodespecError, RequestError
from codespec.server.daemon import DAEMON
from codespec.server.tickets import Ask
from codespec.server.wire import Fields, Lines, error_body, sse
from codespec.types import Event

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


async def stream(
    request: web.Request,
    ask: Ask,
    lines: Lines,
    say: Callable[[Event], Iterable[bytes]],
    tell_error: Callable[[CodespecError], bytes] = lambda error: sse(error_body(error)),
    last: bytes = b"",
) -> web.StreamResponse:
    """Sends what `say` makes of each event, then `last`. What fails before the first byte is raised; later it is told
    in the stream.
    """
    with request.app[DAEMON].ask(ask) as ticket:
        try:
            async for event in ticket.events():
                for piece in say(event):
                    await lines.send(piece)
        except CodespecError as error:
            if not lines.response.prepared:
                raise
            last = tell_error(error)
    await lines.send(last)
    return await lines.end()


def read_tokens(fields: Fields, name: str, context: int, default: int = 64) -> int:
    """How many tokens to write at most. Clients ask for more than a context holds; half of it goes to the prompt."""
    asked = fields.whole(name, default, -2, 1 << 31)
    return min(asked if asked >= 0 else context, max(1, context // 2))


def read_seed(fields: Fields, name: str = "seed") -> int:
    """The seed; a negative one means any."""
    seed = fields.whole(name, 0)
    return seed if seed >= 0 else secrets.randbits(32)
