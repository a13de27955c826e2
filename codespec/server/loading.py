"""Loading on the engine's thread: its progress, and the properties of engine and model that handlers need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from codespec.contract.engine_config import SHIPPED, EngineConfig
from codespec.errors import ServeError
from codespec.store.catalogue import find_entry
from codespec.store.choice import STARTER_NAME, offer
from codespec.store.machine import available_memory, context_room, machine_memory
from codespec.store.pulled import find_pulled
from codespec.store.resolve import identity_of, resolve

if TYPE_CHECKING:
    from codespec.contract.types import Owner
    from codespec.engine.metrics import Metrics
    from codespec.models.slots import CacheUse
    from codespec.store.catalogue import Entry
    from codespec.text.tokenizer import TextTokenizer


@dataclass(slots=True)
class Progress:
    """The progress of loading; written by the engine's thread, read by handlers."""

    phase: str = "waiting"
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the daemon began to load."""
        return time.monotonic() - self.begun


class WritingModel(Protocol):
    """What handlers read of the model that decides."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Its tokenizer."""

    @property
    def device(self) -> object:
        """Where it runs."""


class Writer(Protocol):
    """What handlers read of an engine, or of its stand-in for another server."""

    notes: list[str]
    metrics: Metrics

    @property
    def target(self) -> WritingModel:
        """The model that decides."""

    @property
    def mode(self) -> str:
        """exact, fast or upstream."""

    @property
    def kernel(self) -> str:
        """The kernel for int8 weights, or ""."""

    @property
    def variance(self) -> str:
        """Why exact mode does not hold, or ""."""

    @property
    def prompt_budget(self) -> int:
        """Maximum tokens of an editor prompt."""

    @property
    def caches(self) -> dict[str, CacheUse]:
        """Usage of the caches."""

    def look_up_in(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Set the files that drafts may copy from."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine and the properties that handlers need."""

    engine: Writer
    name: str  # the model's name in replies
    context: int  # maximum context in target tokens
    slots: int  # maximum number of requests in one round
    prefetch: bool = False
    drafter: str = "none"  # the drafter's name
    audit_every: int = 0  # one in `audit_every` completions is decoded again (0: none)
    model: str = ""  # the `model` setting ("": none)
    offer: Entry | None = None  # a better model to pull
    no_fim: str = ""  # why the model can't fill in, if that does not follow from its tokenizer
    names: tuple[str, ...] = ()  # all values of the setting that select this model
    identity: Mapping[str, Any] = field(default_factory=dict)  # everything that determines its texts and drafts

    def demand_tokens(self) -> None:
        """Raise ServeError if the model's tokens are unknown here."""
        if self.engine.mode == "upstream":
            raise ServeError("The upstream server alone knows the model's tokens: ask it for them.", 501)


def loader(
    config: EngineConfig, check_packages: Callable[[], None], prefetch: bool = False, audit_every: int = 0
) -> Callable[[Progress], Loaded]:
    """Return a function that loads the configured models and reports its progress.

    It checks that the models exist before it imports the engine's packages, which takes seconds.
    """

    def load(progress: Progress) -> Loaded:
        progress.phase = "finding the models"
        for name, dtype in _named(config):
            resolve(name).folder(dtype)
        progress.phase = "loading the engine's packages"
        check_packages()
        from codespec.engine.build import build_engine

        def report(phase: str) -> None:
            progress.phase = phase

        report("loading the models")
        identity = identity_of(config)  # identity of the files at the time they are read
        engine = build_engine(config, report)
        target, drafter = public_name(config.target), public_name(config.drafter)
        return Loaded(
            engine,
            target,
            engine.context,
            engine.max_batch,
            prefetch,
            drafter,
            audit_every,
            model=config.model,
            offer=offer(config),
            names=model_names(config),
            identity=identity,
        )

    return load


def fits_beside(config: EngineConfig) -> bool:
    """Return whether these models fit into the free memory while others are loaded.

    Their size is estimated from their files: half as much again for packing, and the share for keys and values. On a
    GPU, an engine takes all memory for its cache, so two never fit.
    """
    memory, free = machine_memory(), available_memory()
    if config.device != "cpu" or memory is None or free is None:
        return False
    folders = [resolve(name).folder(dtype) for name, dtype in _named(config)]
    size = sum(file.stat().st_size for folder in folders for file in Path(folder).glob("*") if file.is_file())
    return free >= size * 3 // 2 + context_room(config.cache_mb, memory)


def _named(config: EngineConfig) -> list[tuple[str, str]]:
    """Return the models to load, with their number formats."""
    pairs = ((config.target, config.dtype), (config.drafter, config.drafter_dtype))
    return [(name, dtype) for name, dtype in pairs if name != "none"]


def model_names(config: EngineConfig) -> tuple[str, ...]:
    """Return all values of the setting `model`, in any case, that select this configuration.

    Empty for a target without a name, such as a folder.
    """
    name = config.model or (STARTER_NAME if config.target == EngineConfig().target else config.target)
    entry = find_entry(name)
    if entry:
        return (entry.name, entry.hub.id) if entry.hub else (entry.name,)
    return (name,) if config.model or name == STARTER_NAME or find_pulled(name) else ()


def public_name(model: str) -> str:
    """Return a model's name for clients: its hub id, or its folder's name without the path."""
    if Path(model).is_relative_to(SHIPPED):
        return "codespec-starter-drafter" if Path(model).name == "drafter" else "codespec-starter"
    return Path(model).name if Path(model).is_absolute() or Path(model).exists() else model
