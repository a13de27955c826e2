"""Run `codespec serve` from startup to shutdown: signals and draining.

The daemon listens immediately and then loads the models. The first SIGTERM or SIGINT lets open requests finish and
exits with 0; the second exits at once. If the engine dies, the daemon exits with an error, so that its supervisor (an
editor's language server, systemd) starts another; that is better than replying 503 forever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from aiohttp import web
from codespec_grammars.workers import start_fork_server

from codespec.contract.serve_config import ServeConfig, check_bind
from codespec.proof import Keys
from codespec.server.app import build_app
from codespec.server.connections import CONNECTIONS, listen
from codespec.server.daemon import Daemon, stopping
from codespec.server.engine_thread import EngineThread
from codespec.server.loading import Loaded, Progress
from codespec.server.logs import safe_output, start_logging
from codespec.server.security import proof_keys
from codespec.server.source import Source
from codespec.token_file import read_token

STOP_SECONDS = 5.0  # for the engine's thread to stop after the last request
REFUSE_SECONDS = 1.0  # for sending the error that the daemon is stopping
IDLE_SECONDS = 75.0  # keep-alive of a connection without a request


def serve(config: ServeConfig, load: Callable[[Progress], Loaded]) -> int:
    """Serve the engine that `load` returns."""
    return serve_from(EngineThread(load), config)


def serve_from(thread: Source, config: ServeConfig) -> int:
    """Serve until a signal arrives; return the exit code. Raise CodespecError if the daemon can't start."""
    token = read_token(config.token_file)
    check_bind(config.host, token)
    printed = list[str]()
    with safe_output(config.log_kb * 1000) as output:
        start_logging(config.access_log)
        start_fork_server()
        keys = proof_keys(token)
        daemon = Daemon(thread, config.queue, output)
        try:
            asyncio.run(_serve(config, token, keys, daemon, printed))
        finally:
            stopped = thread.stop(STOP_SECONDS)
            _print_notes(thread, printed)  # errors while saving
    if not stopped:  # still loading: nothing is lost, and the process would otherwise exit inside torch
        os._exit(0)
    return 0


async def _serve(config: ServeConfig, token: str, keys: Keys, daemon: Daemon, printed: list[str]) -> None:
    thread = daemon.engine_thread
    runner = make_runner(build_app(daemon, config.host, token, keys))
    asyncio.get_running_loop().set_exception_handler(runner.app[CONNECTIONS].on_loop_error)
    await runner.setup()
    stop = _stop_signals()
    try:
        await listen(runner, config)
        thread.start(asyncio.get_running_loop())
        await _until(stop, _run(thread, printed))
    finally:
        await drain(runner, daemon, config.drain_seconds)


async def drain(runner: web.AppRunner, daemon: Daemon, seconds: float) -> None:
    """Stop accepting connections and let open requests finish.

    Requests that do not finish in time get an error; requests whose body is incomplete get it at once.
    """
    daemon.stopping = True
    for site in runner.sites:
        await site.stop()
    connections = runner.app[CONNECTIONS]
    if not await connections.quiet(seconds, stopping):
        daemon.refuse_open()
        await connections.quiet(REFUSE_SECONDS, stopping)
    await runner.cleanup()


async def _until(stop: asyncio.Event, run: Coroutine[Any, Any, NoReturn]) -> None:
    """Wait for a signal. Raise the error if the models fail to load or the engine dies."""
    running, stopped = asyncio.create_task(run), asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if running.done():
        running.result()
    running.cancel()


def make_runner(app: web.Application) -> web.AppRunner:
    """Return a runner that cancels a handler when its client disconnects, and that logs no client data."""
    silent = logging.getLogger("codespec.server.http")
    silent.setLevel(logging.CRITICAL + 1)
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=silent,
        keepalive_timeout=IDLE_SECONDS,
        auto_decompress=False,  # a small body could expand to a large one
        shutdown_timeout=REFUSE_SECONDS,  # for writes after a handler's end
    )


async def _run(thread: Source, printed: list[str]) -> NoReturn:
    """Print when the engine is ready; raise its error when it fails."""
    await thread.until_loaded()
    _print_notes(thread, printed)
    print(f"codespec: ready after {thread.progress.seconds:.1f} s", flush=True)
    await thread.until_failed()


def _print_notes(thread: Source, printed: list[str]) -> None:
    """Print the engine's notes that are not in `printed` yet."""
    notes = thread.loaded.engine.notes if thread.loaded is not None else []
    for note in notes[len(printed) :]:
        print(f"codespec: {note}", file=sys.stderr, flush=True)
    printed[:] = notes


def _stop_signals() -> asyncio.Event:
    """Return an event that the first signal sets; the second signal ends the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        print("codespec: stopping; open requests finish first, a second signal ends at once", flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stop
