"""From `codespec serve` to its end: signals, draining. Knows processes; knows no requests.

It listens at once and loads behind that. The first SIGTERM or SIGINT lets open requests finish and ends with 0; the
second ends at once. An engine that has died ends it too, with an error: whoever watches it (an editor's language
server, systemd) starts another, which helps where answering 503 for ever would not.
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

from codespec.proof import Keys
from codespec.server.access import check_bind
from codespec.server.app import build_app
from codespec.server.connections import CONNECTIONS
from codespec.server.daemon import Daemon, stopping
from codespec.server.loading import Loaded, Progress
from codespec.server.logs import log
from codespec.server.output import lasting
from codespec.server.proving import keys_of
from codespec.server.settings import ServeConfig
from codespec.server.sockets import listen
from codespec.server.worker import Worker
from codespec.token_file import read_token

STOP_SECONDS = 5.0  # for the engine's thread, after the last request
TELL_SECONDS = 1.0  # for replies that say that the daemon stops
IDLE_SECONDS = 75.0  # a connection without a request


def serve(config: ServeConfig, load: Callable[[Progress], Loaded]) -> int:
    """Serves until a signal comes; returns the exit code. Raises CodespecError where it can't begin."""
    token = read_token(config.token_file)
    check_bind(config.host, token)
    worker, told = Worker(load), list[str]()
    with lasting(config.log_kb * 1000) as output:
        _start_logging(config.access_log)
        keys = keys_of(token)
        daemon = Daemon(worker, config.queue, output)
        try:
            asyncio.run(_serve(config, token, keys, daemon, told))
        finally:
            stopped = worker.stop(STOP_SECONDS)
            _tell_notes(worker, told)  # what could not be kept
    if not stopped:  # it is in the middle of loading: nothing is lost, and it would end in the middle of torch
        os._exit(0)
    return 0


async def _serve(config: ServeConfig, token: str, keys: Keys, daemon: Daemon, told: list[str]) -> None:
    worker = daemon.worker
    runner = make_runner(build_app(daemon, config.host, token, keys))
    asyncio.get_running_loop().set_exception_handler(runner.app[CONNECTIONS].on_loop_error)
    await runner.setup()
    stop = _stop_signals()
    try:
        await listen(runner, config)
        worker.start(asyncio.get_running_loop())
        await _until(stop, _work(worker, told))
    finally:
        await drain(runner, daemon, config.drain_seconds)


async def drain(runner: web.AppRunner, daemon: Daemon, seconds: float) -> None:
    """Takes no connection any more, and lets what is asked finish; what is not finished by then is told why."""
    daemon.stopping = True
    for site in runner.sites:
        await site.stop()
    connections = runner.app[CONNECTIONS]
    if not await connections.quiet(seconds):
        daemon.refuse_open()
        connections.refuse_unread(stopping)
        await connections.quiet(TELL_SECONDS)
    await runner.cleanup()


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, NoReturn]) -> None:
    """Waits for a signal. Raises what keeps the models from loading, or what the engine died of."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        working.result()
    working.cancel()


def make_runner(app: web.Application) -> web.AppRunner:
    """An application that cancels a handler whose client has gone, and logs nothing of a client's bytes."""
    silent = logging.getLogger("codespec.server.http")
    silent.setLevel(logging.CRITICAL + 1)
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=silent,
        keepalive_timeout=IDLE_SECONDS,
        auto_decompress=False,  # a small body could become a large one
        shutdown_timeout=TELL_SECONDS,  # for what is written behind a handler's end
    )


async def _work(worker: Worker, told: list[str]) -> NoReturn:
    """Says when the engine is ready, and raises when it has failed."""
    await worker.loading()
    _tell_notes(worker, told)
    print(f"codespec: ready after {worker.progress.seconds:.1f} s", flush=True)
    await worker.failing()


def _tell_notes(worker: Worker, told: list[str]) -> None:
    """Prints the engine's notes that were not `told`."""
    notes = worker.loaded.engine.notes if worker.loaded is not None else []
    for note in notes[len(told) :]:
        print(f"codespec: {note}", file=sys.stderr, flush=True)
    told[:] = notes


def _stop_signals() -> asyncio.Event:
    """Set by the first signal; the second ends the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()
        print("codespec: stopping; open requests finish first, a second signal ends at once", flush=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stop


def _start_logging(access: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if access else logging.WARNING)
    log.propagate = False
