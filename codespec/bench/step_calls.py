"""The shapes of call that a model is measured in: exact as it is found here, and fast. Knows one model whose slots are
free, and how long the search takes; measures no step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codespec.engine.calls import fast_calls
from codespec.models.batch_invariance import SAMPLED, find_variance
from codespec.models.call_search import settle
from codespec.models.call_shape import CallShape
from codespec.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """`shapes` by mode: both on a CPU, but only fast where the model varies in every shape (`variance`). `search` and
    `later` are the seconds that a first start and a later one spend on it.
    """

    shapes: Mapping[str, CallShape]
    variance: str = ""
    tried: str = ""
    search: float = 0.0
    later: float = 0.0

    def mode(self, configured: str) -> str:
        """The configured mode if it can be measured, else the other."""
        return configured if configured in self.shapes else next(iter(self.shapes))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        labels = {mode: shape.label for mode, shape in self.shapes.items()}
        if self.variance:
            return {**labels, "variance": self.variance, "search_s": round(self.search, 3)}
        return {**labels, "tried": self.tried, "search_s": round(self.search, 3), "later_s": round(self.later, 3)}


def find_measured_calls(model: LanguageModel, mode: str, chunk: int) -> MeasuredCalls:
    """Searches anew, whatever is kept, and keeps nothing. A device has kernels of one shape: only `mode` is there."""
    if model.device.type != "cpu":
        return MeasuredCalls({mode: model.calls})
    began = time.perf_counter()
    found = settle(model, chunk)
    search = time.perf_counter() - began
    began = time.perf_counter()
    variance = found.variance or find_variance(model, chunk, SAMPLED)
    later = time.perf_counter() - began
    shapes = {"fast": fast_calls(model)}
    if variance:
        return MeasuredCalls(shapes, variance, search=search)
    return MeasuredCalls({"exact": found.calls, **shapes}, tried=found.tried, search=search, later=later)
