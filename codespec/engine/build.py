"""Build an engine from settings or loaded models. `codespec.startup` does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.api.engine_config import EngineConfig
from codespec.backends.language_model import LanguageModel
from codespec.engine.engine import Engine
from codespec.startup.parts import load_parts, prepare
from codespec.store.choice import resolve_engine
from codespec.store.resolve import PairFiles

if TYPE_CHECKING:
    from codespec.backends.heads.checkpoint import LoadedHead


def load_engine(settings: Mapping[str, Any]) -> Engine:
    """Build an engine from keyword settings (see `EngineConfig`). Raises ConfigError for unknown ones.

    Settings that are not given come from CODESPEC_* variables, then from the user's configuration file, as for every
    command.
    """
    values = dict(settings)
    if "drafter" in values and values["drafter"] is None:
        values["drafter"] = "none"
    for name in ("target", "drafter"):
        if isinstance(values.get(name), Path):
            values[name] = str(values[name])
    return build_engine(resolve_engine(values))


def build_engine(
    config: EngineConfig, tell: Callable[[str], None] = lambda phase: None, pair: PairFiles | None = None
) -> Engine:
    """Load the configured models and build the engine. `tell` is called with the name of each phase.

    `pair`: the models' files, if they are open already.
    """
    return Engine(**load_parts(config, tell, pair))


def assemble(
    target: LanguageModel,
    drafter: LanguageModel | None,
    config: EngineConfig,
    tell: Callable[[str], None] = lambda phase: None,
    head: LoadedHead | None = None,
) -> Engine:
    """Build an engine from loaded models and an optional head, whose target must already be tapped."""
    return Engine(**prepare(target, drafter, config, tell, head))
