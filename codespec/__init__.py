"""The public Python interface: complete code with a target model and a drafter.

Each public name is imported on first use, so that `import codespec` loads no heavy package such as torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codespec.api.types import (
        Completion,
        CompletionRequest,
        Counts,
        DoneEvent,
        Event,
        RoundEvent,
        Snippet,
        Stats,
        TextEvent,
    )
    from codespec.engine.engine import Engine
    from codespec.errors import CodespecError, ConfigError, ModelError, PairError, RequestError, TokenizerError

__version__ = "0.1.0"

__all__ = [
    "CodespecError",
    "Completion",
    "CompletionRequest",
    "ConfigError",
    "Counts",
    "DoneEvent",
    "Engine",
    "Event",
    "ModelError",
    "PairError",
    "RequestError",
    "RoundEvent",
    "Snippet",
    "Stats",
    "TextEvent",
    "TokenizerError",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'codespec' has no attribute {name!r}")
    home = "engine.engine" if name == "Engine" else "errors" if name.endswith("Error") else "api.types"
    value = getattr(import_module(f"codespec.{home}"), name)
    globals()[name] = value  # later accesses skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
