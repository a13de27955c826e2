"""The daemon's state for HTTP handlers: the loaded model, the source of text, a bounded queue and request metrics."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from aiohttp import web

from codespec.engine.job import Priority, RequestHandle
from codespec.errors import CodespecError, RequestError, ServeError
from codespec.files import Unkept
from codespec.server.keys_file import Account, Keyring
from codespec.server.logs import LogOutput
from codespec.text.edit_formats import EditFormat, find_format

if TYPE_CHECKING:
    from codespec.backends.language_model import CacheUse
    from codespec.engine.engine import Engine
    from codespec.engine.metrics import Metrics
    from codespec.store.catalogue import Entry
    from codespec.text.tokenizer import TextTokenizer

RETRY_SECONDS = 1  # delay before a client retries
# Bounds of the histograms of times, densest below the half second in which a keystroke's completion is useful.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
Result = TypeVar("Result")


@dataclass(slots=True)
class Progress:
    """The current phase of loading the models, which the engine's thread writes and handlers read."""

    phase: str = "waiting"
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded model. When idle models are freed, only the field `engine` changes: it becomes None."""

    engine: Engine | None  # None if the models are freed or an upstream server generates the text
    name: str  # the model's name in replies
    context: int  # maximum context in target tokens
    slots: int  # maximum number of requests in one round
    tokenizer: TextTokenizer  # the model's, or a substitute if `mode` is upstream
    metrics: Metrics
    notes: list[str]
    device: str = "cpu"
    mode: str = "exact"  # one of exact, fast and upstream
    variance: str = ""  # why the text is not exact although exact mode is configured
    kernel: str = ""  # the native kernels of the target's matrix products
    prompt_budget: int = 0  # maximum tokens of an editor prompt
    prefetch: bool = False
    drafter: str = "none"  # the drafter's name
    model: str = ""  # the `model` setting ("": none)
    offer: Entry | None = None  # a better model to pull
    no_fim: str = ""  # why the model can't fill in the middle, if its tokenizer can't show that
    names: tuple[str, ...] = ()  # all values of the setting `model` that select this model

    @classmethod
    def of(cls, engine: Engine, name: str, context: int, slots: int, **more: Any) -> Loaded:
        """Describe the model of an engine; `more` contains the values of the remaining fields."""
        names = ("metrics", "notes", "mode", "variance", "kernel", "prompt_budget")
        facts = {fact: getattr(engine, fact) for fact in names}
        target = engine.target
        return cls(engine, name, context, slots, target.tokenizer, device=str(target.device), **facts, **more)

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        return {} if self.engine is None else self.engine.caches


class Source(ABC):
    """A source of text: an engine thread, or a plugin for an upstream server. Only `stop` blocks the event loop."""

    def __init__(self) -> None:
        self.state: Literal["starting", "ready", "idle", "failed", "stopped"] = "starting"
        self.progress = Progress()
        self.loaded: Loaded | None = None
        self.error: CodespecError | None = None
        self._ready, self._failed = asyncio.Event(), asyncio.Event()

    @property
    def takes_requests(self) -> bool:
        """Whether the source accepts requests. An idle source does, and loads its models again."""
        return self.loaded is not None and self.state in ("ready", "idle")

    @property
    @abstractmethod
    def num_running(self) -> int:
        """The number of requests whose text is being generated."""

    @property
    def warning(self) -> str:
        """A sentence about a persistent fault of the upstream server, or ""."""
        return ""

    @property
    def remote(self) -> Mapping[str, Any] | None:
        """The state of the upstream server; None if this process generates the text."""
        return None

    @abstractmethod
    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start loading the models, and deliver all later events on `loop`."""

    async def until_loaded(self) -> None:
        """Wait until the models are loaded, or raise the error if loading fails."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    async def until_failed(self) -> NoReturn:
        """Wait until the source fails permanently, then raise its error."""
        await self._failed.wait()
        assert self.error is not None
        raise self.error

    @abstractmethod
    def admit(self, handle: RequestHandle) -> None:
        """Accept a request. Raise ServeError if the source accepts no requests."""

    @abstractmethod
    def abort(self, handle: RequestHandle) -> None:
        """Drop a request whose client has disconnected."""

    @abstractmethod
    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function between two rounds of the engine and return its result. Raise ServeError."""

    @abstractmethod
    def stop(self, seconds: float) -> bool:
        """Stop. Return False if the source is still busy after `seconds`."""


class Histogram:
    """Counts the observed values in buckets with inclusive upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return pairs of an upper bound and a cumulative count, as Prometheus expects. The last bound is +Inf."""
        ends = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))


class RequestMetrics:
    """Counts of all requests since the daemon started, and durations of interactive requests in seconds."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by priority
        self.completions: Counter[str] = Counter()  # choices, by finish reason
        self.cancelled: Counter[str] = Counter(superseded=0, disconnected=0, deadline=0)  # by cause
        self.failed: Counter[str] = Counter(request=0, engine=0, stopping=0)  # by the party at fault
        self.refused: Counter[str] = Counter(queue_full=0, not_ready=0)  # by reason
        self.queue = Histogram(SECONDS)
        self.to_first_text = Histogram(SECONDS)
        self.to_end = Histogram(SECONDS)

    def end(self, handle: RequestHandle) -> None:
        """Count a request that has ended or whose client has disconnected."""
        self.requests[handle.priority.name.lower()] += 1
        reasons = [completion.finish_reason for completion in handle.finished]
        self.completions.update(reasons)
        if handle.error is not None:
            self.failed[_fault(handle.error)] += 1
        elif handle.ended is None:
            self.cancelled["disconnected"] += 1
        elif "cancelled" in reasons:
            self.cancelled["superseded"] += 1
        else:
            self.cancelled["deadline"] += "deadline" in reasons
            if handle.priority == Priority.INTERACTIVE:
                total = handle.ended - handle.arrived
                queued = [completion.stats.queue_ms / 1000 for completion in handle.finished if completion.stats.rounds]
                self.to_end.observe(total)
                self.queue.observe(min(queued, default=total))
                if handle.first_text is not None:
                    self.to_first_text.observe(handle.first_text - handle.arrived)


def _fault(error: CodespecError) -> str:
    if isinstance(error, RequestError):
        return "request"
    if not isinstance(error, ServeError):
        return "engine"
    return error.party or ("stopping" if error.status == 503 else "engine")


class Daemon:
    """The state that all HTTP handlers share. At most `queue` requests may wait for the source of text."""

    def __init__(
        self,
        source: Source,
        queue: int,
        output: LogOutput | None = None,
        keyring: Keyring | None = None,
        edit_format: str = "auto",
    ) -> None:
        self.source = source
        self._edit_format = edit_format
        self.queue = queue
        self.output = output or LogOutput()
        self.keyring = keyring
        self.stopping = False
        self.metrics = RequestMetrics()
        self.encoding = asyncio.Lock()  # one long text is encoded at a time, which leaves a core for the engine
        self.last_used = time.monotonic()  # time of the last request that needs the models
        self._open: set[RequestHandle] = set()
        self._printed = 0  # number of notes

    @property
    def num_open(self) -> int:
        return sum(not handle.over for handle in self._open)

    @property
    def state(self) -> str:
        """The daemon's state: starting, ready, idle, stopping, failed or stopped."""
        return "stopping" if self.stopping else self.source.state

    @property
    def reason(self) -> str:
        """A clause that says why the daemon is not ready, or "" if it is ready."""
        source = self.source
        if source.error is not None:
            return source.error.fault.clause
        if source.state == "idle":
            return source.progress.phase
        return "" if source.takes_requests else f"{source.progress.phase}, {source.progress.seconds:.0f} s so far"

    @property
    def warning(self) -> str:
        """A sentence about the first persistent fault or unusable file, or "" if there is none."""
        unkept = (f"{note[:1].upper()}{note[1:]}; make room there." for note in self._notes if isinstance(note, Unkept))
        fault = self.keyring.fault if self.keyring else ""
        return self.output.warning or self.source.warning or fault or next(unkept, "")

    @property
    def _notes(self) -> list[str]:
        return [] if self.source.loaded is None else self.source.loaded.notes

    def print_notes(self) -> None:
        """Print to stderr the engine's notes that have not been printed yet."""
        for note in self._notes[self._printed :]:
            print(f"codespec: {note}", file=sys.stderr, flush=True)
        self._printed = len(self._notes)

    def loaded(self) -> Loaded:
        """Return the loaded model. Raise ServeError if the daemon is starting, stopping or failed."""
        source = self.source
        if self.stopping:
            raise stopping()
        if source.error is not None:
            raise ServeError(source.error.fault, 503, state="failed")
        if source.loaded is None or not source.takes_requests:
            sentence = f"The daemon is starting ({self.reason}): try again in a moment."
            raise ServeError(sentence, 503, RETRY_SECONDS, "starting")
        return source.loaded

    def ready(self) -> Loaded:
        """Return the loaded model for a request for text. Unlike `loaded`, count an error as a refused request."""
        try:
            return self.loaded()
        except ServeError:
            self.metrics.refused["not_ready"] += 1
            raise

    def edit_format(self, loaded: Loaded) -> EditFormat | str:
        """Return the model's prompt format for next edits, or a clause that says why the model has none."""
        if loaded.mode == "upstream":
            return "only the upstream server has the model's tokenizer: serve the model here"
        return find_format(self._edit_format, loaded.name, loaded.tokenizer)

    @contextmanager
    def submit(
        self, handle: RequestHandle, scope: str, account: Account | None = None, session: str = ""
    ) -> Iterator[None]:
        """Submit a request, and abort it on exit if it has not ended. Raise ServeError if the request is refused."""
        if self.num_open >= self.ready().slots + self.queue and not self._make_room(scope):
            if account is not None:
                account.refused += 1
            raise self._full()
        handle.request, handle.session = replace(handle.request, scope=scope), session
        self.last_used = time.monotonic()
        self.source.admit(handle)
        self._open.add(handle)
        if account is not None:
            account.open.add(handle)
        try:
            yield
        finally:
            self._open.discard(handle)
            self.last_used = time.monotonic()
            self.metrics.end(handle)
            if account is not None:
                account.end(handle)
            if not handle.over:
                self.source.abort(handle)

    async def call(self, function: Callable[[Loaded], Result]) -> Result:
        """Load idle models if necessary, and call a function with the model between two rounds. Raise ServeError."""
        self.last_used = time.monotonic()
        return await self.source.call(lambda: function(self.loaded()))

    def _make_room(self, scope: str) -> bool:
        """Refuse the newest waiting request of the busiest client, and return whether there was one.

        Refuse none if one more open request would make the client `scope` as busy.
        """
        counts = Counter(handle.request.scope for handle in self._open if not handle.over)
        busiest, most = counts.most_common(1)[0]
        waiting = [handle for handle in self._open if handle.request.scope == busiest and handle.waits]
        if most <= counts[scope] + 1 or not waiting:
            return False
        self.refuse([max(waiting, key=lambda handle: handle.arrived)], self._full())
        return True

    def _full(self) -> ServeError:
        self.metrics.refused["queue_full"] += 1
        wait = math.ceil(RETRY_SECONDS * self.num_open / max(1, self.loaded().slots) / 8)
        return ServeError(f"{self.num_open} requests are open: try again in a moment.", 429, max(1, wait))

    def revoke(self, account: Account) -> None:
        """End the completions of a key that is no longer valid."""
        sentence = f"The key {account.name!r} was revoked: ask the daemon's owner for a new one."
        self.refuse(account.open, ServeError(sentence, 401))

    def refuse(self, handles: Collection[RequestHandle], error: ServeError) -> None:
        """End requests with an error, which each client gets as a stream event or as an HTTP status."""
        for handle in list(handles):
            self.source.abort(handle)
            handle.push([error])

    def refuse_open(self) -> None:
        self.refuse(self._open, stopping())


def stopping() -> ServeError:
    """Return the error for requests to a daemon that is shutting down."""
    return ServeError("The daemon is stopping: try again later.", 503, 5, "stopping")


DAEMON: web.AppKey[Daemon] = web.AppKey("daemon", Daemon)
