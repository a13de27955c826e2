"""What the engine's thread loads, and how far it is. Knows settings and what handlers ask about the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.catalogue.entries import Hub, find_entry
from codespec.catalogue.store import find_pulled
from codespec.config import STARTER, EngineConfig
from codespec.folders.choice import STARTER_NAME, offer
from codespec.folders.find import find_folder
from codespec.folders.identity import identity_of

if TYPE_CHECKING:
    from codespec.catalogue.entries import Entry
    from codespec.engine.engine import Engine


@dataclass(slots=True)
class Progress:
    """How far loading is; written by the engine's thread, read by handlers."""

    phase: str = "waiting"
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the daemon began to load."""
        return time.monotonic() - self.begun


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine, its model's name for replies, and its bounds: target tokens of a request, requests at once; whether it
    goes on behind finished texts; the name of the drafter ("none"); how many completions there are to one that is
    decoded again (0: none is); the setting `model` ("": none was named); a better model to pull, if there is one; and
    all that the setting may be for this model; and what decides its texts and drafts (see `folders.identity`).
    """

    engine: Engine
    name: str
    context: int
    slots: int
    prefetch: bool = False
    drafter: str = "none"
    audit_every: int = 0
    model: str = ""
    offer: Entry | None = None
    names: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)


def loader(
    config: EngineConfig, check_packages: Callable[[], None], prefetch: bool = False, audit_every: int = 0
) -> Callable[[Progress], Loaded]:
    """A function that loads what the configuration names, telling how far it is. What is missing is told before the
    packages are imported, which takes seconds.
    """

    def load(progress: Progress) -> Loaded:
        progress.phase = "finding the models"
        for name in (config.target, config.drafter):
            if name != "none":
                find_folder(name)
        progress.phase = "loading the engine's packages"
        check_packages()
        from codespec.engine.load import build_engine

        def tell(phase: str) -> None:
            progress.phase = phase

        tell("loading the models")
        identity = identity_of(config)  # of the files as they are when they are read
        engine = build_engine(config, tell)
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


def model_names(config: EngineConfig) -> tuple[str, ...]:
    """All that `model` may be set to for what this configuration runs, without regard to case; nothing for a target
    that no name means, such as a folder.
    """
    name = config.model or (STARTER_NAME if config.target == EngineConfig().target else config.target)
    entry = find_entry(name)
    if entry:
        return (entry.name, str(entry.source)) if isinstance(entry.source, Hub) else (entry.name,)
    return (name,) if config.model or name == STARTER_NAME or find_pulled(name) else ()


def public_name(model: str) -> str:
    """A model's name for clients: a hub id as it is; of a folder its own name, never the path to it."""
    if Path(model).is_relative_to(STARTER):
        return "codespec-starter-drafter" if Path(model).name == "drafter" else "codespec-starter"
    return Path(model).name if Path(model).is_absolute() or Path(model).exists() else model
