"""A daemon on a real port in its own thread, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from codespec.api.config import ServeConfig
from codespec.server.app import build_app, drain, follow_keys, make_runner
from codespec.server.daemon import Daemon, Loaded, Progress
from codespec.server.engine_thread import EngineThread
from codespec.server.middleware import Access
from codespec.server.sockets import listen, proof_keys

SECONDS = 120  # shared cores are sometimes slow


@dataclass
class Answer:
    """A complete reply."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """The body's server-sent events as (name, data); data other than a JSON object stays text."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            data = lines["data"]
            found.append((lines.get("event", ""), json.loads(data) if data.startswith("{") else data))
        return found


@dataclass
class Served:
    """A daemon under test."""

    source: EngineThread
    daemon: Daemon
    port: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request on its own connection; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): v for name, v in headers.items()})
            reply = connection.getresponse()
            return Answer(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send a POST request."""
        return self.ask("POST", path, body, **headers)

    def open(self, path: str, body: Any) -> http.client.HTTPConnection:
        """Send a POST request and leave the reply unread."""
        return self.open_as(path, body, {})

    def open_as(self, path: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPConnection:
        """Like `open`, with headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request("POST", path, json.dumps(body).encode(), dict(headers))
        return connection

    def idle(self) -> bool:
        """Wait until no request is open; return whether that happened in time."""
        return wait_for(lambda: self.daemon.num_open == 0)


def wait_for(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Wait for a condition; return whether it came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@contextmanager
def serving(engine: Any, slots: int = 4, queue: int = 64, context: int = 512, **settings: Any) -> Iterator[Served]:
    """Run a daemon around an engine; `slots` sequences take part in each round."""
    engine.queue.slots = slots
    with serving_load(lambda _: Loaded.of(engine, "toy", context, slots), queue, **settings) as served:
        yield served


@contextmanager
def serving_load(
    load: Callable[[Progress], Loaded],
    queue: int = 64,
    ready: bool = True,
    token: str = "",
    host: str = "127.0.0.1",
    access: Access | None = None,
    edit_format: str = "auto",
) -> Iterator[Served]:
    """Run a daemon that loads its engine; with `ready`, wait for that."""
    access = access or Access(token)
    with serving_source(EngineThread(load), queue, ready, host, access, edit_format) as served:
        yield served


@contextmanager
def serving_source(
    source: Any,
    queue: int = 64,
    ready: bool = True,
    host: str = "127.0.0.1",
    access: Access | None = None,
    edit_format: str = "auto",
) -> Iterator[Served]:
    """Run a daemon around a source of text; with `ready`, wait until it can be used."""
    access = access or Access("")
    served = Served(source, Daemon(source, queue, keyring=access.keyring, edit_format=edit_format))
    runner = make_runner(build_app(served.daemon, host, access, proof_keys(access.token)))

    watching: list[asyncio.Task[NoReturn] | None] = []

    async def end() -> None:
        await drain(runner, served.daemon, 5.0)
        for task in filter(None, watching):
            task.cancel()
            await asyncio.wait([task])
        if hasattr(source, "close"):
            await source.close()

    async def begin() -> None:
        await runner.setup()
        watching.append(follow_keys(served.daemon, by_signal=False))
        await listen(runner, ServeConfig(port=0, socket="none"))
        served.port = runner.addresses[0][1]
        source.start(served.loop)
        if ready:
            await source.until_loaded()

    thread = threading.Thread(target=served.loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(begin(), served.loop).result(SECONDS)
        yield served
    finally:
        asyncio.run_coroutine_threadsafe(end(), served.loop).result(SECONDS)
        assert source.stop(SECONDS), "the engine's thread hangs"
        served.loop.call_soon_threadsafe(served.loop.stop)
        thread.join(SECONDS)
        served.loop.close()
