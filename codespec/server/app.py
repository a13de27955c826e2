"""The aiohttp application: the routes of every dialect on one port, with shared middleware.

The access log contains only the method, route, status and duration of each request, never a query, a header or a body.
"""

from __future__ import annotations

import time
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from codespec.client import proof
from codespec.errors import CodespecError, ServeError
from codespec.server.chat_template import CHAT_TEMPLATES, ChatTemplates, end_chat_templates
from codespec.server.connections import CONNECTIONS, Connections, open_files
from codespec.server.daemon import DAEMON, RETRY_SECONDS, Daemon
from codespec.server.dialects import codespec, edits, llama_cpp, ollama, openai, sweep, tabby
from codespec.server.logs import log, log_failure
from codespec.server.security import (
    ACCESS,
    PROOF_KEYS,
    PROOF_PATHS,
    PROOF_ROUTES,
    SCOPES,
    Access,
    Scopes,
    guard,
)
from codespec.server.wire import Refused, error_reply, read_fields, reply, route_of

READY = "/ready"  # open to anyone, without details
HEALTH = frozenset({"/health", "/v1/health", READY, *PROOF_PATHS})  # the requests that clients send first
HTTP_ERRORS = {
    404: ("path", "docs/clients.md lists the endpoints"),
    405: ("method", "use a method that Allow lists"),
}


def build_app(
    daemon: Daemon,
    host: str = "127.0.0.1",
    access: Access | None = None,
    keys: proof.Keys | None = None,
) -> web.Application:
    """Build the application with all routes and middleware. Without `keys`, the daemon can't prove its identity."""
    access = access or Access()
    connections = Connections(open_files())
    open_paths = PAGE_PATHS | PROOF_PATHS | {READY}
    guards = [record, answer_errors, connections.watch(HEALTH), guard(host, access, open_paths)]
    app = web.Application(middlewares=guards)
    app[DAEMON], app[CONNECTIONS], app[CHAT_TEMPLATES] = daemon, connections, ChatTemplates()
    app[SCOPES], app[PROOF_KEYS], app[ACCESS] = Scopes(), keys or proof.Keys(), access
    app.on_cleanup.append(end_chat_templates)
    for dialect in (codespec, edits, sweep, llama_cpp, openai, tabby, ollama):
        app.router.add_routes(dialect.ROUTES)
    app.router.add_routes([*PAGE_ROUTES, *PROOF_ROUTES])
    app.router.add_get(READY, ready)
    app.router.add_post("/v1/completions", complete_v1)
    return app


async def ready(request: web.Request) -> web.StreamResponse:
    """Reply 200 if requests are accepted, else 503, for load balancers.

    Supervisors use `GET /health` instead, which reports whether the process is alive (`security.ALIVE`).
    """
    if request.app[DAEMON].state not in ("ready", "idle"):
        raise ServeError("The daemon can't complete now: try again in a moment.", 503, RETRY_SECONDS)
    return reply({"status": "ready"}, headers={"Cache-Control": "no-store"})


async def complete_v1(request: web.Request) -> web.StreamResponse:
    """Handle the path that OpenAI and Tabby share. Only Tabby's bodies have `segments` or `debug_options`."""
    fields = await read_fields(request)
    if "segments" in fields or "debug_options" in fields:
        return await tabby.complete(request, fields)
    return await openai.complete(request, fields)


@web.middleware
async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log each request; the outermost middleware."""
    begun, status = time.perf_counter(), 499
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        ms = (time.perf_counter() - begun) * 1000
        log.info("%s %s %d %.0f ms", request.method[:8], route_of(request), status, ms)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert any exception to a JSON error reply with a one-sentence message."""
    try:
        return await handler(request)
    except CodespecError as error:
        return error_reply(error)
    except web.HTTPException as error:
        return _from_http(error)
    except ConnectionResetError:
        raise
    except Exception as error:  # last resort: the client gets one sentence, the log gets the exception's type
        log_failure(f"{route_of(request)} failed", error)
        return error_reply(ServeError(f"The daemon failed here ({type(error).__name__}): please report it.", 500))


def _from_http(error: web.HTTPException) -> web.Response:
    field, fix = HTTP_ERRORS.get(error.status, ("request", "correct it"))
    response = error_reply(Refused(f"{field} is refused ({error.reason}): {fix}.", field, error.status))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


# The page at /, an editor in the browser that demonstrates speculation. Its files are built from web/.
PAGE = Path(__file__).with_name("page")
PAGE_FILES = {
    "index.html": "text/html",
    "codespec.js": "text/javascript",
    "codespec.css": "text/css",
    "icon.svg": "image/svg+xml",
    "licences.txt": "text/plain",
}
PAGE_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # cached but revalidated: a newer daemon has a newer page
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def send_file(request: web.Request) -> web.StreamResponse:
    """Serve a file of the page, by default index.html. Only the names in PAGE_FILES reach the file system."""
    name = request.match_info.get("name", "index.html")
    if name not in PAGE_FILES:
        raise web.HTTPNotFound
    return web.FileResponse(PAGE / name, headers={**PAGE_HEADERS, "Content-Type": f"{PAGE_FILES[name]}; charset=utf-8"})


PAGE_ROUTES = [web.get("/", send_file), web.get("/page/{name}", send_file)]
# Open without a token: the page contains no data, and it prompts for the token.
PAGE_PATHS = frozenset({"/", "/page/{name}"})
