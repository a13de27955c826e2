"""From `codespec serve` to its end: sockets, signals, draining. Knows processes; knows no requests.

It listens at once and loads behind that. The first SIGTERM or SIGINT lets open requests finish and ends with 0; the
second ends at once. An engine that has died ends it too, with an error: whoever watches it (an editor's language
server, systemd) starts another, which helps where answering 503 for ever would not.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from codespec.errors import ConfigError
from codespec.server.access import check_bind
from codespec.server.app import build_app
from codespec.server.daemon import Daemon
from codespec.server.loading import Loaded, Progress
from codespec.server.logs import log
from codespec.server.settings import ServeConfig
from codespec.server.worker import Worker
from codespec.token_file import read_token

STOP_SECONDS = 5.0  # for the engine's thread, after the last request
IDLE_SECONDS = 75.0  # a connection without a request


def serve(config: ServeConfig, load: Callable[[Progress], Loaded]) -> int:
    """Serves until a signal comes; returns the exit code. Raises CodespecError where it can't begin."""
    token = read_token(config.token_file)
    check_bind(config.host, token)
    _start_logging(config.access_log)
    worker, told = Worker(load), list[str]()
    try:
        asyncio.run(_serve(config, token, worker, told))
    finally:
        stopped = worker.stop(STOP_SECONDS)
        _tell_notes(worker, told)  # what could not be kept
    if not stopped:  # it is in the middle of loading: nothing is lost, and it would end in the middle of torch
        sys.stdout.flush()
        os._exit(0)
    return 0


async def _serve(config: ServeConfig, token: str, worker: Worker, told: list[str]) -> None:
    daemon = Daemon(worker, config.queue)
    runner = make_runner(build_app(daemon, config.host, token), config.drain_seconds)
    await runner.setup()
    stop = _stop_signals()
    try:
        await listen(runner, config)
        worker.start(asyncio.get_running_loop())
        await _until(stop, _work(worker, told))
    finally:
        own = [Path(address) for address in runner.addresses if isinstance(address, str)]
        daemon.stopping = True
        await runner.cleanup()
        for place in own:
            place.unlink(missing_ok=True)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, NoReturn]) -> None:
    """Waits for a signal. Raises what keeps the models from loading, or what the engine died of."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        working.result()
    working.cancel()


def make_runner(app: web.Application, drain_seconds: float) -> web.AppRunner:
    """An application that cancels a handler whose client has gone, and logs nothing of a client's bytes."""
    silent = logging.getLogger("codespec.server.http")
    silent.setLevel(logging.CRITICAL + 1)
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=silent,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=drain_seconds,
    )


async def listen(runner: web.AppRunner, config: ServeConfig) -> None:
    """Opens the sockets and says where. Raises ConfigError where one is taken."""
    try:
        await web.TCPSite(runner, config.host, config.port).start()
    except OSError as error:
        raise ConfigError(_why_not(config, error)) from error
    host = f"[{config.host}]" if ":" in config.host else config.host
    print(f"codespec: listening on http://{host}:{runner.addresses[0][1]}", flush=True)
    if config.socket:
        await _listen_unix(runner, Path(config.socket).expanduser())


async def _listen_unix(runner: web.AppRunner, path: Path) -> None:
    _clear(path)
    former = os.umask(0o177)  # for this user alone
    try:
        await web.UnixSite(runner, str(path)).start()
    except OSError as error:
        raise ConfigError(f"The socket {path} can't be made ({error.strerror}): choose another place.") from error
    finally:
        os.umask(former)
    print(f"codespec: listening on unix:{path}", flush=True)


def _clear(path: Path) -> None:
    """Removes a socket that nobody answers on; what else lies there stays."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return  # nothing there; a folder that is missing is told when the socket is made
    if not is_socket:
        raise ConfigError(f"{path} is there and no socket: choose another path for --socket.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"The socket {path} is in use: stop the other daemon, or choose another with --socket.")


def _why_not(config: ServeConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        where = f"Port {config.port} of {config.host} is in use"
        return f"{where}: stop the other program, or choose another with --port (0 takes a free one)."
    if error.errno == errno.EACCES:
        return f"Port {config.port} needs rights you do not have: choose one from 1024 on with --port."
    return f"{config.host}:{config.port} can't be listened on ({error.strerror}): check --host."


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
