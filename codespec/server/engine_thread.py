"""The only thread that uses the engine: it loads the engine, runs rounds while there is work, and sleeps otherwise.

Handlers post commands; messages return to the event loop in one batch per round. Commands that arrive while the models
are freed, or being loaded again, wait in the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from codespec.errors import CodespecError, ServeError
from codespec.server.daemon import stopping
from codespec.server.dispatcher import Delivery, Dispatcher, Failed, RequestHandle
from codespec.server.loading import Loaded, Progress, Result, Source
from codespec.server.logs import log_failure

if TYPE_CHECKING:
    from codespec.engine.metrics import Metrics

MAX_CALLS = 64  # functions that wait for the end of a round
PREFETCH_DELAY = 0.15  # seconds after a finished text; the user's next keystroke usually comes sooner


@dataclass(frozen=True, slots=True)
class Command:
    """Work for the engine's thread; `refuse` reports to its client that it can't be done any more.

    `needs_models` is false for work that is void if the models are freed.
    """

    run: Callable[[Dispatcher], None]
    refuse: Callable[[CodespecError], None] = lambda error: None
    needs_models: bool = True


class EngineThread(Source):
    """Owns the engine that `load` returns.

    After `idle_unload` seconds without work (0: never) it frees the engine, and loads it again for the next command.
    """

    def __init__(self, load: Callable[[Progress], Loaded], idle_unload: float = 0.0) -> None:
        super().__init__()
        self.load = load
        self.idle_unload = idle_unload
        self._inbox: list[Command] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._closed = False
        self._num_calls = 0  # calls that a handler awaits; used by the event loop only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="codespec-engine", daemon=True)

    @property
    def num_running(self) -> int:
        """Number of open requests that the engine currently runs."""
        dispatcher = self.dispatcher  # the engine's thread may drop it
        jobs = [] if dispatcher is None else list(dispatcher.queue.jobs)
        return sum(len(job.handles) for job in jobs if job.sequences)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start loading; events go to this loop."""
        self._loop = loop
        self._thread.start()

    def admit(self, handle: RequestHandle) -> None:
        """Pass a request to the engine."""

        def refuse(error: CodespecError) -> None:
            self._post_to_loop(lambda: handle.push([Failed(error)]))

        self._post(Command(lambda dispatcher: dispatcher.admit(handle), refuse))

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request that its client has left. Do nothing if the thread has ended."""
        with contextlib.suppress(ServeError):
            self._post(Command(lambda dispatcher: dispatcher.abort(handle), needs_models=False))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function between two rounds. Raise ServeError if too many are waiting."""
        if self._num_calls >= MAX_CALLS:
            raise ServeError(f"{MAX_CALLS} calls wait for the engine: try again in a moment.", 429, 1)
        future: Future[Result] = Future()
        self._num_calls += 1
        try:
            self._post(Command(lambda _: _answer(function, future), partial(_refuse, future)))
            return await asyncio.wrap_future(future)
        finally:
            self._num_calls -= 1

    def stop(self, seconds: float) -> bool:
        """Stop the thread and save the engine's learned state; return False if it is still busy after `seconds`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _post(self, command: Command) -> None:
        with self._wake:
            if self._closed:
                raise ServeError("The engine has stopped: restart the daemon.", 503)
            self._inbox.append(command)
            self._wake.notify()

    def _run(self) -> None:
        metrics: Metrics | None = None
        while self._load(metrics):
            if not self._serve():
                return
            metrics = self._free()
            if not self._until_needed():
                self.state = "stopped"
                self._close(stopping())
                return

    def _load(self, metrics: Metrics | None) -> bool:
        """Load the engine, which counts on in `metrics`. Return False if that failed for good."""
        try:
            loaded = self.load(self.progress)
        except CodespecError as error:
            self._give_up(error)
            return False
        except BaseException as error:  # thread boundary: any library error, panics included, becomes one sentence
            log_failure("the models did not load", error)
            self._give_up(ServeError(f"The models did not load ({type(error).__name__}): see the log above.", 503))
            return False
        engine = loaded.engine
        assert engine is not None
        if metrics is not None:
            engine.metrics, loaded = metrics, replace(loaded, metrics=metrics)
        self.dispatcher = Dispatcher(engine, loaded.prefetch, PREFETCH_DELAY)
        self.loaded, self.state = loaded, "ready"
        self._post_to_loop(self._ready.set)
        return True

    def _serve(self) -> bool:
        """Run the engine's rounds. Return whether it is idle, and False if it has ended."""
        dispatcher = self.dispatcher
        assert dispatcher is not None
        try:
            self._work(dispatcher)
            if self._stopping:
                self.state = "stopped"
                self._close(stopping())
            dispatcher.engine.close()
            return self.state == "ready"
        except BaseException as error:  # thread boundary: otherwise every open request would wait forever
            log_failure("the engine's thread ended", error)
            self._give_up(ServeError(f"The engine has stopped ({type(error).__name__}): restart the daemon.", 503))
            return False

    def _work(self, dispatcher: Dispatcher) -> None:
        while (commands := self._take(dispatcher)) is not None:
            for command in commands:
                command.run(dispatcher)
            dispatcher.round()
            self._deliver(dispatcher)

    def _free(self) -> Metrics:
        """Free the engine and return its metrics. Handlers see its facts in the meantime."""
        assert self.loaded is not None
        self.loaded, self.dispatcher = replace(self.loaded, engine=None), None
        release_memory()
        self.progress, self.state = Progress("models freed"), "idle"
        return self.loaded.metrics

    def _until_needed(self) -> bool:
        """Wait for a command that needs the models. Return False if the thread must stop."""
        with self._wake:
            while not (self._stopping or any(command.needs_models for command in self._inbox)):
                self._wake.wait()
            return not self._stopping

    def _close(self, error: ServeError) -> None:
        """Accept no more commands and end the remaining requests with the error."""
        with self._wake:
            self._closed = True
            commands, self._inbox = self._inbox, []
        if self.dispatcher is not None:
            self.dispatcher.refuse_all(error)  # without the engine, which may be broken
            self._deliver(self.dispatcher)
        for command in commands:
            command.refuse(error)

    def _take(self, dispatcher: Dispatcher) -> list[Command] | None:
        """Wait for commands or work, and return the new commands.

        Return None when the thread must stop, or when there was nothing to do for `idle_unload` seconds.
        """
        idle_at = time.monotonic() + self.idle_unload if self.idle_unload else math.inf
        with self._wake:
            while not (self._inbox or self._stopping or (seconds := dispatcher.idle_for) == 0.0):
                if seconds is None and idle_at < math.inf:
                    seconds = idle_at - time.monotonic()
                    if seconds <= 0:
                        return None
                self._wake.wait(seconds)
            if self._stopping:
                return None
            commands, self._inbox = self._inbox, []
            return commands

    def _deliver(self, dispatcher: Dispatcher) -> None:
        deliveries, dispatcher.outbox = dispatcher.outbox, []
        if deliveries:
            self._post_to_loop(partial(_hand_out, deliveries))

    def _give_up(self, error: CodespecError) -> None:
        """End for good: all requests get the error."""
        self.error, self.state = error, "failed"
        self._close(ServeError(error.fault, 503))
        self._post_to_loop(self._ready.set)
        self._post_to_loop(self._failed.set)

    def _post_to_loop(self, function: Callable[[], object]) -> None:
        """Schedule a function on the event loop; do nothing if the loop is closed."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)


def _hand_out(deliveries: Sequence[Delivery]) -> None:
    for handle, messages in deliveries:
        handle.push(messages)


def _answer(function: Callable[[], Result], future: Future[Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # its client has disconnected
    try:
        future.set_result(function())
    except Exception as error:  # thread boundary: the caller gets the error
        future.set_exception(error)


def _refuse(future: Future[Result], error: CodespecError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def release_memory() -> None:
    """Return freed memory to the system: objects in cycles, the pages that malloc keeps, and torch's cache on a GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other C libraries return pages by themselves
        if trim is not None:
            trim(0)
