"""The daemon's HTTP application: its startup, the routes of all dialects, and its shutdown.

The daemon starts to listen before it loads the models. After the first SIGTERM or SIGINT, the daemon finishes the open
requests and exits with status 0; a second signal ends the process at once. If the engine fails, the daemon exits with
an error, so that its supervisor (such as systemd or an editor's language server) restarts it.

The access log contains the method, route, status and duration of each request, but never a query, a header or a body.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from codespec.api.config import ServeConfig, check_bind
from codespec.client import proof
from codespec.errors import ServeError
from codespec.server import middleware, sockets
from codespec.server.chat_template import CHAT_TEMPLATES, ChatTemplates
from codespec.server.daemon import DAEMON, RETRY_SECONDS, Daemon, Source, stopping
from codespec.server.dialects import codespec, llama_cpp, ollama, openai, sweep, tabby
from codespec.server.keys_file import Keyring, watch
from codespec.server.logs import safe_output, start_logging
from codespec.server.wire import read_fields, reply
from codespec.user_folders import named_path, read_token

STOP_SECONDS = 5.0  # for the engine's thread to stop after the last request
REFUSE_SECONDS = 1.0  # to send open requests the error that the daemon is stopping
UNUSED_SECONDS = 86_400.0  # without a request, after which a daemon that an editor started exits
IDLE_SECONDS = 75.0  # keep-alive of a connection without a request
READY = "/ready"  # needs no token
HEALTH = frozenset({"/health", "/v1/health", READY, *sockets.PROOF_PATHS})  # served even if too many requests are open


def serve(source: Source, config: ServeConfig, unused_seconds: float = 0.0) -> int:
    """Serve until a signal arrives or `unused_seconds` (0: no limit) pass without a request. Raise CodespecError."""
    token = read_token(config.token_file)
    check_bind(config.host, token, config.keys)
    metrics_token = read_token(config.metrics_token_file, {}) if config.metrics_token_file else ""
    keyring = Keyring(named_path(config.keys)) if config.keys else None
    access = middleware.Access(token, metrics_token, keyring)
    with safe_output(config.log_kb * 1000) as output:
        start_logging(config.access_log)
        keys = sockets.proof_keys(token)
        daemon = Daemon(source, config.queue, output, keyring, config.edit_format)
        try:
            runner = make_runner(build_app(daemon, config.host, access, keys))
            asyncio.run(_serve(runner, config, daemon, unused_seconds))
        finally:
            stopped = source.stop(STOP_SECONDS)
            daemon.print_notes()  # such as errors while saving
    if not stopped:  # the models are still loading: there is nothing to save, and a normal exit could crash in torch
        os._exit(0)
    return 0


async def _serve(runner: sockets.Runner, config: ServeConfig, daemon: Daemon, unused_seconds: float) -> None:
    asyncio.get_running_loop().set_exception_handler(runner.app[middleware.CONNECTIONS].on_loop_error)
    await runner.setup()
    stop, watching = _stop_signals(), follow_keys(daemon)
    unused = asyncio.create_task(stop_unused(daemon, unused_seconds, stop)) if unused_seconds else None
    try:
        await sockets.listen(runner, config)
        daemon.source.start(asyncio.get_running_loop())
        running, stopped = asyncio.create_task(_run(daemon)), asyncio.create_task(stop.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if running.done():
            running.result()
        running.cancel()  # an engine that fails while the daemon drains is not reported again
    finally:
        await drain(runner, daemon, config.drain_seconds)
        for task in filter(None, (watching, unused)):
            task.cancel()


async def stop_unused(daemon: Daemon, seconds: float, stop: asyncio.Event) -> None:
    """Set `stop` after `seconds` without a request that uses the models."""
    while (left := daemon.last_used + seconds - time.monotonic()) > 0 or daemon.num_open:
        await asyncio.sleep(max(left, 1.0))
    print(f"codespec: stopping; no request came for {seconds / 3600:g} h", flush=True)
    stop.set()


def follow_keys(daemon: Daemon, *, by_signal: bool = True) -> asyncio.Task[NoReturn] | None:
    """Start a task that reloads the keys file after changes and on SIGHUP. Return None if there is no keys file."""
    keyring, woken = daemon.keyring, asyncio.Event()
    if keyring is None:
        return None
    if by_signal:  # without a keys file, SIGHUP should end the daemon, as when a terminal closes
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, woken.set)
    return asyncio.create_task(watch(keyring, woken, daemon.revoke))


async def drain(runner: web.AppRunner, daemon: Daemon, seconds: float) -> None:
    """Wait up to `seconds` for open requests, then refuse the rest; refuse incomplete requests at once."""
    daemon.stopping = True
    for site in runner.sites:
        await site.stop()
    connections = runner.app[middleware.CONNECTIONS]
    if not await connections.quiet(seconds, stopping):
        daemon.refuse_open()
        await connections.quiet(REFUSE_SECONDS, stopping)
    await runner.cleanup()


def make_runner(app: web.Application) -> sockets.Runner:
    """Return a runner that cancels a handler when its client disconnects, and that logs no client data."""
    silent = logging.getLogger("codespec.server.http")
    silent.setLevel(logging.CRITICAL + 1)
    return sockets.Runner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=silent,
        keepalive_timeout=IDLE_SECONDS,
        auto_decompress=False,  # a small body could expand to a large one
        shutdown_timeout=REFUSE_SECONDS,  # for a reply to be written after its handler has returned
    )


async def _run(daemon: Daemon) -> NoReturn:
    await daemon.source.until_loaded()
    daemon.print_notes()
    print(f"codespec: ready after {daemon.source.progress.seconds:.1f} s", flush=True)
    await daemon.source.until_failed()


def _stop_signals() -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; a second signal ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        print("codespec: stopping; open requests finish first, a second signal ends at once", flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stop


def build_app(
    daemon: Daemon, host: str = "127.0.0.1", access: middleware.Access | None = None, keys: proof.Keys | None = None
) -> web.Application:
    """Build the application with all routes and middleware. Without `keys`, the daemon can't prove its identity."""
    access, connections = access or middleware.Access(), middleware.Connections()
    guards = middleware.guard(host, access, PAGE_PATHS | sockets.PROOF_PATHS | {READY})
    app = web.Application(middlewares=[middleware.record, middleware.answer_errors, connections.watch(HEALTH), guards])
    app[DAEMON], app[middleware.CONNECTIONS], app[CHAT_TEMPLATES] = daemon, connections, ChatTemplates()
    app[middleware.SCOPES], app[middleware.ACCESS] = middleware.Scopes(), access
    app[sockets.PROOF_KEYS] = keys or proof.Keys()
    app.on_cleanup.append(lambda app: app[CHAT_TEMPLATES].close())
    for dialect in (codespec, sweep, llama_cpp, openai, tabby, ollama):
        app.router.add_routes(dialect.ROUTES)
    app.router.add_routes([*PAGE_ROUTES, *sockets.PROOF_ROUTES])
    app.router.add_get(READY, ready)
    app.router.add_post("/v1/completions", complete_v1)
    return app


async def ready(request: web.Request) -> web.StreamResponse:
    if request.app[DAEMON].state not in ("ready", "idle"):
        raise ServeError("The daemon is not ready: try again in a moment.", 503, RETRY_SECONDS)
    return reply({"status": "ready"}, headers={"Cache-Control": "no-store"})


async def complete_v1(request: web.Request) -> web.StreamResponse:
    """Handle /v1/completions for OpenAI and Tabby. Only Tabby's requests have `segments` or `debug_options`."""
    fields = await read_fields(request)
    if "segments" in fields or "debug_options" in fields:
        return await tabby.complete(request, fields)
    return await openai.complete(request, fields)


# The page at / is an editor in the browser that demonstrates speculation. Its files are built from web/.
PAGE = Path(__file__).with_name("page")
PAGE_FILES = {
    "index.html": "text/html",
    "codespec.js": "text/javascript",
    "codespec.css": "text/css",
    "icon.svg": "image/svg+xml",
    "licences.txt": "text/plain",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # the browser must revalidate it, because a newer daemon has a newer page
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def send_file(request: web.Request) -> web.StreamResponse:
    """Serve a file of the web page, by default index.html. Raise HTTPNotFound if PAGE_FILES has no such name."""
    name = request.match_info.get("name", "index.html")
    if name not in PAGE_FILES:
        raise web.HTTPNotFound
    return web.FileResponse(PAGE / name, headers={**PAGE_HEADERS, "Content-Type": f"{PAGE_FILES[name]}; charset=utf-8"})


PAGE_ROUTES = [web.get("/", send_file), web.get("/page/{name}", send_file)]
PAGE_PATHS = frozenset({"/", "/page/{name}"})  # need no token: the page contains no data, and it asks for the token
