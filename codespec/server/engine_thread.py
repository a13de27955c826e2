"""The only thread that uses the engine: it loads the engine, runs rounds while there is work, and sleeps otherwise.

Handlers post commands; messages return to the event loop in one batch per round.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from codespec.errors import CodespecError, ServeError
from codespec.server.dispatcher import Delivery, Dispatcher
from codespec.server.handles import RequestHandle
from codespec.server.loading import LoadedEngine, Progress, Result, Source
from codespec.server.logs import log_failure

MOST_CALLS = 64  # functions that wait for the end of a round
PREFETCH_DELAY = 0.15  # seconds after a finished text; the user's next keystroke usually comes sooner


class EngineThread(Source):
    """Owns the engine that `load` returns."""

    loaded: LoadedEngine | None

    def __init__(self, load: Callable[[Progress], LoadedEngine]) -> None:
        super().__init__()
        self.load = load
        self._inbox: list[Callable[[Dispatcher], None]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._closed = False
        self._num_calls = 0  # calls that a handler awaits; used by the event loop only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="codespec-engine", daemon=True)

    @property
    def num_running(self) -> int:
        """Number of open requests that the engine currently runs."""
        handles = [] if self.dispatcher is None else list(self.dispatcher.handles)
        return sum(bool(handle.job and handle.job.sequences) for handle in handles)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start loading; events go to this loop."""
        self._loop = loop
        self._thread.start()

    def admit(self, handle: RequestHandle) -> None:
        """Pass a request to the engine."""
        self._post(lambda dispatcher: dispatcher.admit(handle))

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request that its client has left. Do nothing if the thread has ended."""
        with contextlib.suppress(ServeError):
            self._post(lambda dispatcher: dispatcher.abort(handle))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function between two rounds. Raise ServeError if too many are waiting."""
        if self._num_calls >= MOST_CALLS:
            raise ServeError(f"{MOST_CALLS} calls wait for the engine: try again in a moment.", 429, 1)
        future: Future[Result] = Future()
        self._num_calls += 1
        try:
            self._post(lambda _: _answer(function, future))
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

    def _post(self, command: Callable[[Dispatcher], None]) -> None:
        with self._wake:
            if self._closed:
                raise ServeError("The engine has stopped: restart the daemon.", 503)
            self._inbox.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self.loaded = loaded = self.load(self.progress)
        except CodespecError as error:
            self._give_up(error)
            return
        except BaseException as error:  # thread boundary: any library error, panics included, becomes one sentence
            log_failure("the models did not load", error)
            self._give_up(ServeError(f"The models did not load ({type(error).__name__}): see the log above.", 503))
            return
        dispatcher = self.dispatcher = _build_dispatcher(loaded)
        self.state = "ready"
        self._post_to_loop(self._ready.set)
        try:
            self._work(dispatcher)
            self.state = "stopped"
            self._close(dispatcher, ServeError("The daemon is stopping: try again later.", 503, 5))
            dispatcher.engine.close()
        except BaseException as error:  # thread boundary: otherwise every open request would wait forever
            log_failure("the engine's thread ended", error)
            self._give_up(ServeError(f"The engine has stopped ({type(error).__name__}): restart the daemon.", 503))
            self._close(dispatcher, ServeError("The engine has stopped: restart the daemon.", 503))

    def _work(self, dispatcher: Dispatcher) -> None:
        while (commands := self._take(dispatcher)) is not None:
            for command in commands:
                command(dispatcher)
            dispatcher.round()
            self._deliver(dispatcher)

    def _close(self, dispatcher: Dispatcher, error: ServeError) -> None:
        """Accept no more commands and end the remaining requests with the error."""
        with self._wake:
            self._closed = True
            commands, self._inbox = self._inbox, []
        dispatcher.refuse_all(error)  # first, so that no command needs the engine, which may be broken
        for command in commands:
            command(dispatcher)
        dispatcher.refuse_all(error)
        self._deliver(dispatcher)

    def _take(self, dispatcher: Dispatcher) -> list[Callable[[Dispatcher], None]] | None:
        """Wait for commands or work, and return the new commands; return None when the thread must stop."""
        with self._wake:
            while not (self._inbox or self._stopping or (seconds := dispatcher.idle_for) == 0.0):
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
        self.error, self.state = error, "failed"
        self._post_to_loop(self._ready.set)
        self._post_to_loop(self._failed.set)

    def _post_to_loop(self, function: Callable[[], object]) -> None:
        """Schedule a function on the event loop; do nothing if the loop is closed."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)


def _build_dispatcher(loaded: LoadedEngine) -> Dispatcher:
    return Dispatcher(loaded.engine, loaded.prefetch, PREFETCH_DELAY)


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
