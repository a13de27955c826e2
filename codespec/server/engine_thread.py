"""The only thread that uses the engine: it loads the engine, runs rounds while there is work, and sleeps otherwise.

Handlers put requests and function calls into a queue, which remains in use when the engine is freed and loaded again.
Messages for clients are passed to the event loop in one batch per round. If a round fails, its requests run again one
at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from codespec.api.config import SHIPPED, EngineConfig
from codespec.engine.job import Job, RequestHandle
from codespec.engine.queue import Delivery, PrefetchCache, Queue
from codespec.errors import CodespecError, RequestError, ServeError, TokenizerError
from codespec.sequence import Sequence as Text
from codespec.server.daemon import Loaded, Progress, Result, Source, stopping
from codespec.server.logs import log_failure
from codespec.store.catalogue import find_entry
from codespec.store.choice import STARTER_NAME, offer
from codespec.store.pulled import find_pulled
from codespec.store.resolve import open_pair

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

MAX_CALLS = 64  # functions that wait for the end of a round
PREFETCH_DELAY_S = 0.15  # seconds after a finished text; the user's next keystroke usually comes sooner


class EngineThread(Source):
    """Owns the engine that `load` returns, and frees the engine after `idle_unload` idle seconds (0: never)."""

    def __init__(self, load: Callable[[Progress], Loaded], idle_unload: float = 0.0) -> None:
        super().__init__()
        self.load = load
        self.idle_unload = idle_unload
        self.queue = Queue()
        self._stopping = False
        self.engine: Engine | None = None
        self._num_calls = 0  # calls that a handler awaits; used by the event loop only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="codespec-engine", daemon=True)

    @property
    def num_running(self) -> int:
        return sum(len(job.handles) for job in list(self.queue.jobs) if job.sequences)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def admit(self, handle: RequestHandle) -> None:
        self.queue.put(lambda refusal: self.queue.admit(handle, refusal))

    def abort(self, handle: RequestHandle) -> None:
        handle.left = True

    async def call(self, function: Callable[[], Result]) -> Result:
        if self._num_calls >= MAX_CALLS:
            raise ServeError(f"{MAX_CALLS} calls are waiting for the engine: try again in a moment.", 429, 1)
        future: Future[Result] = Future()
        self._num_calls += 1
        try:
            self.queue.put(partial(_answer, future, function))
            return await asyncio.wrap_future(future)
        finally:
            self._num_calls -= 1

    def stop(self, seconds: float) -> bool:
        """Stop the thread and save the engine's learned state; return False if it is still busy after `seconds`."""
        self._stopping = True
        with contextlib.suppress(ServeError):  # the thread has ended
            self.queue.put(lambda refusal: None)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def use(self, engine: Engine, patience: float | None = None) -> None:
        """Run the queued requests on an engine; if `patience` is set, also prefetch (see `Queue`)."""
        self.engine = engine
        self.queue.slots, self.queue.finish, self.queue.patience = engine.queue.slots, engine.queue.finish, patience
        engine.queue = self.queue

    def round(self) -> None:
        """Drop the requests of disconnected clients, and run one engine step for the choices that the queue selects."""
        for handle in self.queue.handles:
            if handle.left:
                self.queue.abort(handle)
        chosen = self.queue.next_round(time.perf_counter(), self._start)
        if chosen:
            self._step(chosen)
        self.queue.expire(time.perf_counter())
        self.queue.collect()

    def _start(self, job: Job) -> None:
        assert self.engine is not None
        try:
            job.predict_cursor()
            self.engine.start(job)
        except TokenizerError as error:
            self.queue.answer(job, [RequestError(str(error), "prefix")])
        except CodespecError as error:
            self.queue.answer(job, [error])
        except Exception as error:  # engine boundary: only the request that can't be submitted ends
            self._fail(job, error)

    def _step(self, chosen: list[Text]) -> None:
        assert self.engine is not None
        try:
            self.engine.step(chosen)
        except Exception as error:  # engine boundary: one request's fault must not end the others
            failed = [job for job in self.queue.jobs if not set(chosen).isdisjoint(job.sequences)]
            for job in failed:
                self.queue.restart(job)
            if len(failed) == 1:
                self._fail(failed[0], error)

    def _fail(self, job: Job, error: Exception) -> None:
        log_failure("a request failed in the engine", error)
        kind = type(error).__name__  # the exception's message may contain source text
        sentence = f"The engine failed on this request ({kind}): see the daemon's log."
        self.queue.answer(job, [ServeError(sentence, 500)])

    def _run(self) -> None:
        while self._load() and self._serve():
            self._free()
            self.queue.wait(None)
            if self._stopping:
                self._end()
                return

    def _load(self) -> bool:
        """Load an engine, which continues the metrics of a freed engine. Return False if loading failed permanently."""
        try:
            loaded = self.load(self.progress)
        except CodespecError as error:
            self._give_up(error)
            return False
        except BaseException as error:  # thread boundary: any library error, panics included, becomes one sentence
            log_failure("the models did not load", error)
            self._give_up(ServeError(f"The models did not load ({type(error).__name__}): see the daemon's log.", 503))
            return False
        engine = loaded.engine
        assert engine is not None
        if self.loaded is not None:
            engine.metrics = self.loaded.metrics
            loaded = replace(loaded, metrics=engine.metrics)
        self.use(engine, PREFETCH_DELAY_S if loaded.prefetch else None)
        self.loaded, self.state = loaded, "ready"
        self._post_to_loop(self._ready.set)
        return True

    def _serve(self) -> bool:
        """Run the engine's rounds. Return True once the engine is idle, or False if the thread must end."""
        assert self.engine is not None
        try:
            while self._wait():
                self.queue.call_put()
                self.round()
                self._deliver()
            if self._stopping:
                self._end()
            self.engine.close()
            return self.state == "ready"
        except BaseException as error:  # thread boundary: otherwise every open request would wait forever
            log_failure("the engine's thread ended", error)
            self._give_up(ServeError(f"The engine has stopped ({type(error).__name__}): restart the daemon.", 503))
            return False

    def _free(self) -> None:
        """Free the engine. Handlers can still read all fields of `loaded` except `engine`."""
        assert self.loaded is not None
        self.loaded, self.engine = replace(self.loaded, engine=None), None
        self.queue.finish = lambda sequence, reason: None  # holds on to the engine otherwise
        self.queue.prefetched = PrefetchCache()  # other models would write other texts
        release_memory()
        self.progress, self.state = Progress("models freed"), "idle"

    def _end(self) -> None:
        self.state = "stopped"
        self._close(stopping())

    def _give_up(self, error: CodespecError) -> None:
        self.error, self.state = error, "failed"
        self._close(ServeError(error.fault, 503))
        self._post_to_loop(self._ready.set)
        self._post_to_loop(self._failed.set)

    def _close(self, error: ServeError) -> None:
        self.queue.close(error)
        self._deliver()

    def _wait(self) -> bool:
        """Wait for work. Return False if the thread must stop, or after `idle_unload` idle seconds."""
        planned = self.queue.idle_for(time.perf_counter())
        arrived = self.queue.wait(planned if planned is not None else self.idle_unload or None)
        return (arrived or planned is not None) and not self._stopping

    def _deliver(self) -> None:
        deliveries, self.queue.outbox = self.queue.outbox, []
        if deliveries:
            self._post_to_loop(partial(_hand_out, deliveries))

    def _post_to_loop(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)


def _hand_out(deliveries: Sequence[Delivery]) -> None:
    for handle, messages in deliveries:
        handle.push(messages)


def _answer(future: Future[Result], function: Callable[[], Result], refusal: CodespecError | None) -> None:
    """Call `function`, unless there is a `refusal`, and resolve `future` with the result or the error."""
    if not future.set_running_or_notify_cancel():
        return  # its client has disconnected
    try:
        if refusal is not None:
            raise refusal
        future.set_result(function())
    except Exception as error:  # thread boundary: the caller gets the error
        future.set_exception(error)
    except BaseException as error:  # a panic of a library, which must not end the thread
        log_failure("a call failed on the engine's thread", error)
        sentence = f"The daemon failed on this call ({type(error).__name__}): see its log."
        future.set_exception(ServeError(sentence, 500))


def release_memory() -> None:
    """Return unused memory to the system: reference cycles, free pages of malloc, and torch's GPU cache."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other C libraries return pages by themselves
        if trim is not None:
            trim(0)


def loader(
    config: EngineConfig, check_packages: Callable[[], None], prefetch: bool = False
) -> Callable[[Progress], Loaded]:
    """Return a function that locates the models, then imports the engine's packages, and then loads the models."""

    def load(progress: Progress) -> Loaded:
        def report(phase: str) -> None:
            progress.phase = phase

        report("finding the models")
        pair = open_pair(config)
        report("loading the engine's packages")
        check_packages()
        from codespec.engine.engine import Engine

        report("loading the models")
        engine = Engine.build(config, report, pair)
        target, drafter = public_name(config.target), public_name(config.drafter)
        return Loaded.of(
            engine,
            target,
            engine.context,
            engine.max_batch,
            prefetch=prefetch,
            drafter=drafter,
            model=config.model,
            offer=offer(config),
            names=model_names(config),
        )

    return load


def model_names(config: EngineConfig) -> tuple[str, ...]:
    """Return the values of the setting `model` that select the configured models; letter case is ignored."""
    name = config.model or (STARTER_NAME if config.target == EngineConfig().target else config.target)
    entry = find_entry(name)
    if entry:
        return (entry.name, entry.hub.id) if entry.hub else (entry.name,)
    return (name,) if config.model or name == STARTER_NAME or find_pulled(name) else ()


def public_name(model: str) -> str:
    """Return a model's name for clients: its hub id, or the last component of its path."""
    if Path(model).is_relative_to(SHIPPED):
        name = Path(model).name
        return {"target": "codespec-starter", "drafter": "codespec-starter-drafter"}.get(name, f"codespec-{name}")
    return Path(model).name if Path(model).is_absolute() or Path(model).exists() else model
