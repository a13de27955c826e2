"""The application: every route of every dialect on one port, behind the same guards.

Knows which path belongs to whom; knows no fields.
"""

from __future__ import annotations

from aiohttp import web

from codespec import proof
from codespec.server import metrics_page, page, proving
from codespec.server.connections import CONNECTIONS, Connections, open_files
from codespec.server.daemon import DAEMON, Daemon
from codespec.server.dialects import codespec, llama_about, llama_cpp, mistral, ollama, openai, openai_chat, tabby
from codespec.server.scopes import SCOPES, Scopes
from codespec.server.security import answer_errors, guard, log_access
from codespec.server.templates import TEMPLATES, Templates, end_templates
from codespec.server.wire import read_fields

HEALTH = frozenset({"/health", "/v1/health", *proving.OPEN_PATHS})  # which clients ask first


def build_app(
    daemon: Daemon, host: str = "127.0.0.1", token: str = "", keys: proof.Keys | None = None
) -> web.Application:
    """The routes and the guards around them; without `keys` the daemon can't prove that it is anybody's."""
    connections = Connections(open_files())
    open_paths = page.OPEN_PATHS | proving.OPEN_PATHS
    guards = [log_access(), answer_errors(), connections.watch(HEALTH), guard(host, token, open_paths)]
    app = web.Application(middlewares=guards)
    app[DAEMON], app[CONNECTIONS], app[TEMPLATES] = daemon, connections, Templates()
    app[SCOPES], app[proving.KEYS] = Scopes(), keys or proof.Keys()
    app.on_cleanup.append(end_templates)
    for dialect in (codespec, llama_cpp, llama_about, openai, openai_chat, mistral, tabby, ollama):
        app.router.add_routes(dialect.ROUTES)
    app.router.add_routes(metrics_page.ROUTES)
    app.router.add_routes(page.ROUTES)
    app.router.add_routes(proving.ROUTES)
    app.router.add_post("/v1/completions", complete_v1)
    return app


async def complete_v1(request: web.Request) -> web.StreamResponse:
    """OpenAI's and Tabby's path alike: Tabby's bodies have segments (or say how to be debugged)."""
    fields = await read_fields(request)
    if "segments" in fields or "debug_options" in fields:
        return await tabby.complete(request, fields)
    return await openai.complete(request, fields)
