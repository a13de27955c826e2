"""Public API of codespec: complete code with a drafter and a target.

Public names are imported on first use. `import codespec` loads neither torch nor transformers, which keeps editors and
`codespec --help` fast.
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
    from codespec.errors import (
        CodespecError,
        ConfigError,
        ModelError,
        PairError,
        RequestError,
        TokenizerError,
    )

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

_ERRORS = {"CodespecError", "ConfigError", "ModelError", "PairError", "RequestError", "TokenizerError"}


def _home(name: str) -> str:
    """Return the name of the module that defines a public name."""
    if name == "Engine":
        return "codespec.engine.engine"
    return "codespec.errors" if name in _ERRORS else "codespec.api.types"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'codespec' has no attribute {name!r}")
    value = getattr(import_module(_home(name)), name)
    globals()[name] = value  # later accesses skip __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
