"""`POST /v1/codespec/reload`: replace the models without losing a request.

A request keeps the engine that was in use when it arrived, so no text mixes two models. If both fit into memory, the
new models load while the old ones serve, and later requests go to the new ones. Otherwise the old ones finish and are
unloaded first, and requests that arrive in the meantime wait, within their deadlines. If loading fails, the old models
stay, or are loaded again.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from codespec.contract.body import ReloadBody
from codespec.contract.types import Owner
from codespec.errors import CodespecError, Fault, RequestError, ServeError
from codespec.server.daemon import RETRY_SECONDS, Daemon
from codespec.server.engine_thread import EngineThread
from codespec.server.loading import Loaded, LoadedEngine, Progress, Source
from codespec.server.wire import Refused, read_fields, reply

POLL_SECONDS = 0.02
STOP_SECONDS = 30.0  # for an engine's thread to save what it learned


@dataclass(frozen=True, slots=True)
class Plan:
    """How to load other models, and whether they fit into memory beside the current ones."""

    load: Callable[[Progress], LoadedEngine]
    fits: bool


class Reloader:
    """Replaces the engine of a daemon. `plan` reads the settings again, with the changes of the request.

    If the old requests must end before the new models load, `patience` is their time limit in seconds. `announce` is
    called when the new models are in use.
    """

    def __init__(
        self,
        daemon: Daemon,
        plan: Callable[[Mapping[str, Any]], Plan],
        patience: float,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        self._daemon = daemon
        self._plan = plan
        self._patience = patience
        self._announce = announce
        self._running: asyncio.Task[Loaded] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def reload(self, changes: Mapping[str, Any], *, unload_first: bool = False) -> Loaded:
        """Load the models and use them. Raise CodespecError if the old ones are kept.

        Cancelling the wait, for example because the client leaves, does not stop the reload.
        """
        if self._running is not None and not self._running.done():
            raise ServeError("Another reload is in progress: try again later.", 409, RETRY_SECONDS)
        self._daemon.loaded()
        self._running = asyncio.create_task(self._reload(changes, unload_first=unload_first))
        self._running.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._running)

    async def _reload(self, changes: Mapping[str, Any], *, unload_first: bool) -> Loaded:
        plan = await asyncio.to_thread(self._plan, changes)
        if plan.fits and not unload_first:
            former, fresh = self._daemon.current, await self._load(plan.load)
            await self._use(fresh, await files_of(former))
            task = asyncio.create_task(self._retire(former))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        else:
            with self._daemon.holding():
                fresh = await self._replace(plan.load)
        assert fresh.loaded is not None
        return fresh.loaded

    async def _replace(self, load: Callable[[Progress], LoadedEngine]) -> EngineThread:
        """Unload the old models, then load the new ones; if that fails, load the old ones again."""
        former, failure = self._daemon.current, None
        assert isinstance(former, EngineThread), "another server has no models to replace"
        try:
            async with asyncio.timeout(self._patience):
                await self._until_unused(former)
        except TimeoutError as error:
            sentence = f"Requests did not end within {self._patience:g} s, so the old model is kept: try again later."
            raise ServeError(sentence, 503, RETRY_SECONDS) from error
        files = await files_of(former)
        await self._unload(former)
        try:
            fresh = await self._load(load)
        except CodespecError as error:
            failure, fresh = error, await self._restore(former.load)
        await self._use(fresh, files)
        if failure is not None:
            raise failure
        return fresh

    async def _restore(self, load: Callable[[Progress], LoadedEngine]) -> EngineThread:
        """Load the old models again. If that fails too, the daemon exits with the error."""
        try:
            return await self._load(load)
        except CodespecError:
            assert self._daemon.incoming is not None
            self._daemon.use(self._daemon.incoming)
            raise

    async def _load(self, load: Callable[[Progress], LoadedEngine]) -> EngineThread:
        fresh = self._daemon.incoming = EngineThread(load)
        fresh.start(asyncio.get_running_loop())
        await fresh.until_loaded()
        return fresh

    async def _use(self, fresh: EngineThread, files: Mapping[Owner, Sequence[bytes]]) -> None:
        """Use an engine for new requests, and give it the files that drafts may copy from."""
        assert fresh.loaded is not None
        engine = fresh.loaded.engine

        def keep() -> None:
            for owner, texts in files.items():
                engine.look_up_in(owner, texts)

        await fresh.call(keep)
        self._daemon.use(fresh)
        self._announce()

    async def _retire(self, former: Source) -> None:
        await self._until_unused(former)
        await self._unload(former)

    async def _until_unused(self, thread: Source) -> None:
        while self._daemon.num_users(thread):
            await asyncio.sleep(POLL_SECONDS)

    async def _unload(self, thread: Source) -> None:
        """Stop the thread and free the engine's memory."""
        await asyncio.to_thread(thread.stop, STOP_SECONDS)
        thread.loaded = thread.dispatcher = None
        self._daemon.forget(thread)
        gc.collect()
        await asyncio.to_thread(return_memory)


def return_memory() -> None:
    """Return freed memory to the system. glibc keeps the memory of an ended thread, tens of MB for each engine."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


async def files_of(thread: Source) -> Mapping[Owner, Sequence[bytes]]:
    """Return the files that an engine's drafts may copy from; none if too many calls wait for it."""
    if not isinstance(thread, EngineThread) or thread.loaded is None:
        return {}
    engine = thread.loaded.engine
    try:
        return await thread.call(lambda: engine.files)
    except ServeError:
        return {}


async def reload(request: web.Request) -> web.StreamResponse:
    """Replace the models; reply when the new ones are in use. Raise Refused if the daemon can't load models."""
    reloader, began = request.app.get(RELOADER), time.perf_counter()
    if reloader is None:
        raise Refused("This daemon can't load other models: start it with `codespec serve`.", "path", 501)
    with await read_fields(request) as fields:
        body = dict(fields.read(ReloadBody))
    unload_first = bool(body.pop("unload_first", False))
    try:
        loaded = await reloader.reload(body, unload_first=unload_first)
    except ServeError:
        raise
    except CodespecError as error:
        kept = Fault("", f"The old model is kept ({error.fault.problem})", error.fault.mend, next(iter(body), ""))
        raise RequestError(kept) from error
    seconds = round(time.perf_counter() - began, 1)
    return reply({"target": loaded.name, "drafter": loaded.drafter, "seconds": seconds})


RELOADER: web.AppKey[Reloader] = web.AppKey("reloader", Reloader)
