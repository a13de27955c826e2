"""`GET /ready`: whether the daemon can complete now, for load balancers. Open to anyone, without details.

`GET /health` is its counterpart for supervisors: it reports whether the process lives (`security.ALIVE`).
"""

from __future__ import annotations

from aiohttp import web

from codespec.errors import ServeError
from codespec.server.daemon import DAEMON, RETRY_SECONDS
from codespec.server.wire import reply


async def ready(request: web.Request) -> web.StreamResponse:
    """Reply 200 if the model is loaded and the engine runs, else 503."""
    if request.app[DAEMON].state != "ready":
        raise ServeError("The daemon can't complete now: ask again in a moment.", 503, RETRY_SECONDS)
    return reply({"status": "ready"}, headers={"Cache-Control": "no-store"})


ROUTES = [web.get("/ready", ready)]
OPEN_PATHS = frozenset({"/ready"})
