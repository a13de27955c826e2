"""The seam between HTTP handlers and what writes the text (an engine on its own thread, or a plugin), and loading."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from codespec.api.engine_config import SHIPPED, EngineConfig
from codespec.errors import CodespecError, ServeError
from codespec.store.catalogue import find_entry
from codespec.store.choice import STARTER_NAME, offer
from codespec.store.pulled import find_pulled
from codespec.store.resolve import open_pair

if TYPE_CHECKING:
    from codespec.backends.slots import CacheUse
    from codespec.engine.engine import Engine
    from codespec.engine.metrics import Metrics
    from codespec.server.dispatcher import Dispatcher, RequestHandle
    from codespec.store.catalogue import Entry
    from codespec.text.tokenizer import TextTokenizer

Result = TypeVar("Result")


@dataclass(slots=True)
class Progress:
    """The progress of loading; written by the engine's thread, read by handlers."""

    phase: str = "waiting"
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the daemon began to load."""
        return time.monotonic() - self.begun


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model that writes the text, as handlers see it. All but `engine` stays when an idle engine is freed."""

    engine: Engine | None  # None if its models are freed, or if another server writes
    name: str  # the model's name in replies
    context: int  # maximum context in target tokens
    slots: int  # maximum number of requests in one round
    tokenizer: TextTokenizer  # the model's, or one that stands for it if `mode` is upstream
    metrics: Metrics
    notes: list[str]
    device: str = "cpu"
    mode: str = "exact"  # one of exact, fast and upstream
    variance: str = ""  # why exact mode does not hold although it is configured
    kernel: str = ""  # the native kernels of the target's products
    prompt_budget: int = 0  # maximum tokens of an editor prompt
    prefetch: bool = False
    drafter: str = "none"  # the drafter's name
    model: str = ""  # the `model` setting ("": none)
    offer: Entry | None = None  # a better model to pull
    no_fim: str = ""  # why the model can't fill in, if its tokenizer does not show it
    names: tuple[str, ...] = ()  # all values of the setting `model` that select this model

    @classmethod
    def of(cls, engine: Engine, name: str, context: int, slots: int, **more: Any) -> Loaded:
        """Return an engine with what handlers need of it."""
        facts = {fact: getattr(engine, fact) for fact in ENGINE_FACTS}
        target = engine.target
        return cls(engine, name, context, slots, target.tokenizer, device=str(target.device), **facts, **more)

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """Usage of the caches, by name."""
        return {} if self.engine is None else self.engine.caches

    def demand_tokens(self) -> None:
        """Raise ServeError if the model's tokens are unknown here."""
        if self.mode == "upstream":
            raise ServeError("Only the upstream server has the model's tokenizer: send the request there.", 501)


ENGINE_FACTS = ("metrics", "notes", "mode", "variance", "kernel", "prompt_budget")


class Source(ABC):
    """Takes requests and pushes events to their handles. No method blocks the event loop, except `stop`.

    `dispatcher` is the engine's dispatcher, which other threads may only read. An idle source has freed its models, and
    loads them again for the next request.
    """

    def __init__(self) -> None:
        self.state: Literal["starting", "ready", "idle", "failed", "stopped"] = "starting"
        self.progress = Progress()
        self.loaded: Loaded | None = None
        self.dispatcher: Dispatcher | None = None
        self.error: CodespecError | None = None
        self._ready, self._failed = asyncio.Event(), asyncio.Event()

    @property
    def takes_requests(self) -> bool:
        """Whether requests are accepted, perhaps to wait for the models."""
        return self.loaded is not None and self.state in ("ready", "idle")

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Number of open requests that are being written."""

    @property
    def warning(self) -> str:
        """A sentence about a lasting fault, or ""; an engine has notes instead."""
        return ""

    @property
    def remote(self) -> Mapping[str, Any] | None:
        """The state of the upstream server; None if this process generates the text."""
        return None

    @abstractmethod
    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start loading. Events are delivered on this loop."""

    async def until_loaded(self) -> None:
        """Wait until requests can be taken. Raise the error if loading fails."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    async def until_failed(self) -> NoReturn:
        """Wait for a permanent failure, and raise its error."""
        await self._failed.wait()
        assert self.error is not None
        raise self.error

    @abstractmethod
    def admit(self, handle: RequestHandle) -> None:
        """Take a request. Raise ServeError."""

    @abstractmethod
    def abort(self, handle: RequestHandle) -> None:
        """Drop a request that its client has left."""

    @abstractmethod
    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a function while no request uses the engine. Raise ServeError."""

    @abstractmethod
    def stop(self, seconds: float) -> bool:
        """Stop. Return False if the source is still busy after `seconds`."""


def loader(
    config: EngineConfig, check_packages: Callable[[], None], prefetch: bool = False
) -> Callable[[Progress], Loaded]:
    """Return a function that loads the configured models and reports its progress.

    The function checks that the models exist before it imports the engine's packages, which takes seconds.
    """

    def load(progress: Progress) -> Loaded:
        def report(phase: str) -> None:
            progress.phase = phase

        report("finding the models")
        pair = open_pair(config)
        report("loading the engine's packages")
        check_packages()
        from codespec.engine.build import build_engine

        report("loading the models")
        engine = build_engine(config, report, pair)
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
    """Return all values of the setting `model`, in any case, that select this configuration.

    The tuple is empty for a target without a name, such as a folder.
    """
    name = config.model or (STARTER_NAME if config.target == EngineConfig().target else config.target)
    entry = find_entry(name)
    if entry:
        return (entry.name, entry.hub.id) if entry.hub else (entry.name,)
    return (name,) if config.model or name == STARTER_NAME or find_pulled(name) else ()


def public_name(model: str) -> str:
    """Return a model's name for clients: its hub id, or its folder's name without the path."""
    if Path(model).is_relative_to(SHIPPED):
        name = Path(model).name
        return {"target": "codespec-starter", "drafter": "codespec-starter-drafter"}.get(name, f"codespec-{name}")
    return Path(model).name if Path(model).is_absolute() or Path(model).exists() else model
