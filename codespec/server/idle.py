"""An engine whose models are freed: what handlers still see of it, and the return of its memory to the system.

The tokenizer stays, since a request is read before it needs the models.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from codespec.server.loading import Loaded

if TYPE_CHECKING:
    from codespec.contract.types import Owner
    from codespec.engine.metrics import Metrics
    from codespec.models.slots import CacheUse
    from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class RestingModel:
    """The facts of a freed model."""

    tokenizer: TextTokenizer
    device: str


@dataclass(slots=True)
class RestingEngine:
    """The facts of a freed engine, as handlers see them (`loading.Writer`). Its caches are gone."""

    target: RestingModel
    mode: str
    variance: str
    kernel: str
    prompt_budget: int
    metrics: Metrics
    notes: list[str]

    @property
    def caches(self) -> Mapping[str, CacheUse]:
        """None."""
        return {}

    def look_up_in(self, owner: Owner, files: Sequence[bytes]) -> None:
        """Fail: the engine's thread loads the engine before it keeps files."""
        raise AssertionError("the engine is freed")


def at_rest(loaded: Loaded) -> Loaded:
    """Return what handlers need of an engine, without a reference to its models."""
    engine = loaded.engine
    resting = RestingEngine(
        RestingModel(engine.target.tokenizer, str(engine.target.device)),
        engine.mode,
        engine.variance,
        engine.kernel,
        engine.prompt_budget,
        engine.metrics,
        engine.notes,
    )
    rest = {field.name: getattr(loaded, field.name) for field in fields(Loaded) if field.name != "engine"}
    return Loaded(resting, **rest)


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
